"""Fixtures that more than one component's tests use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from .prepared_process import end_parent
from .store_process import StartStore, store_processes

settings.register_profile("unhurried", deadline=None)  # how long one takes tells of the machine
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def _prepared_processes_end() -> Iterator[None]:
    yield
    end_parent()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is entered, or called back, ends with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def _older_objects() -> Iterator[None]:
    """They are not looked at again after each test, which would take longer than the test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def own_garbage(_older_objects: None) -> Iterator[None]:
    """What a test leaves is collected with it: a connection that nobody closed fails this test and
    not the next one. For folders whose tests open many."""
    yield
    gc.collect()


@pytest.fixture
def store_daemon(tmp_path: Path) -> Iterator[StartStore]:
    """`store_daemon(*flags)` starts a real store daemon, see store_process.py."""
    with store_processes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def module_store_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartStore]:
    """As `store_daemon`, for daemons that the tests of a module share."""
    with store_processes(tmp_path_factory.mktemp("stores")) as start:
        yield start


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See tiny_llama.py."""
    from .tiny_llama import save_tiny_llama  # torch is slow to import

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    save_tiny_llama(folder)
    return folder
