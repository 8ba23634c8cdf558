"""What the tests of one membership share; those of all lie in tests/conformance."""

from __future__ import annotations

from pathlib import Path

import pytest

from .members import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cluster"
