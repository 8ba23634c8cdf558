"""Health checks follow each other quickly, so that no test waits a second for the next one. What
leaves a connection behind is told from the test after it."""

from __future__ import annotations

import pytest

from moontide.conductor.cluster import watcher

CHECK_SECONDS = watcher.CHECK_SECONDS
"""As users have it."""


@pytest.fixture(autouse=True)
def _garbage_fails_its_own_test(own_garbage: None) -> None:
    """See there."""


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "CHECK_SECONDS", 0.1)
