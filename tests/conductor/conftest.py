"""Health checks follow each other quickly, so that no test waits a second for the next one."""

from __future__ import annotations

import pytest

from moontide.conductor.cluster import watcher

CHECK_SECONDS = watcher.CHECK_SECONDS
"""As users have it."""


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "CHECK_SECONDS", 0.1)
