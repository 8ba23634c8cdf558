"""A daemon that the tests of a file share, and its admin REST. A file that wants other flags, or
wants more to be true afterwards, has fixtures of these names of its own."""

from __future__ import annotations

import pytest

from ...store_process import StartStore, StoreProcess
from .admin import Admin


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon()


@pytest.fixture
def admin(daemon: StoreProcess) -> Admin:
    return Admin(daemon.admin, daemon.token)
