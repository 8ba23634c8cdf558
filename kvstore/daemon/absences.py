"""What stores that are away have missed: whether string entries on their disks may be older than
what others acknowledged since.

Each store with a disk has a mark, a number in the membership:

    even (here, or gone and nothing was changed since) ──a change without it──► odd (must forget)
      ▲                                                                          │
      └────────────── it came back, and its string entries are gone ─────────────┘

A change bars whoever is away before it is applied, and looks at the membership again after that; a
store that comes back registers first and reads its mark then. So either the change sees it, or it
sees that it was barred. A mark that is not the one it wrote down itself proves nothing: then, too,
it forgets its string entries (ADR 0026).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from ..durable import write_durably
from ..membership import NODE_MARK, Membership

logger = logging.getLogger(__name__)

_RECORD = "mark"
_DRAFT = ".mark.draft"


class Absences:
    """All calls block (a thread makes them) and raise StoreError and OSError."""

    def __init__(self, membership: Membership, directory: Path, node: str) -> None:
        self._membership = membership
        self._directory = directory
        self._node = node

    def has_missed(self) -> bool:
        """Whether string entries may have been changed without this store since it enrolled. Ask
        when it is registered and serves nobody yet."""
        try:
            mine = int((self._directory / _RECORD).read_bytes()[:32])
        except (OSError, ValueError):
            return True
        return self._membership.floors().get(_mark_of(self._node)) != mine

    def enrol(self) -> None:
        """It has nothing older than what others have, on disk neither. The number is another one
        each time: a copy of the directory that is put back later proves nothing."""
        mark = _mark_of(self._node)
        known = self._membership.floors().get(mark, 0)
        number = known + 2 - known % 2
        self._membership.raise_floors((), {mark: number})
        write_durably(self._directory / _RECORD, self._directory / _DRAFT, b"%d" % number)

    def bar(self, present: Collection[str]) -> None:
        """All stores (node ids) but these forget their string entries when they come back."""
        here = {_mark_of(node) for node in present}
        away = {
            mark: number + 1
            for mark, number in self._membership.floors().items()
            if mark.startswith(NODE_MARK) and mark not in here and number % 2 == 0
        }
        if away:
            self._membership.raise_floors((), away)
            logger.info("absent_stores_barred count=%d", len(away))


def _mark_of(node: str) -> str:
    return NODE_MARK + node.encode().hex()
