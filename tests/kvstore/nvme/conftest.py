"""Tiers that are closed when their test ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .rig import Rig

OpenTier = Callable[..., Rig]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: these tests make things durable thousands of times."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="moontide-nvme-") as directory:
        yield Path(directory)


@pytest.fixture
def open_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenTier]:
    """`open_tier(**settings)` opens a tier in `tmp_path/nvme`; the one before it is closed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rigs: list[Rig] = []

    def start(**settings: object) -> Rig:
        if rigs:
            rigs.pop().close()
        directory = settings.pop("directory", tmp_path / "nvme")
        rigs.append(Rig(directory, **settings))  # type: ignore[arg-type]  # forwarded
        return rigs[-1]

    yield start
    for rig in rigs:
        rig.close()
