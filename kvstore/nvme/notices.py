"""Outcomes on their way from the writer to the thread that uses the tier."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .operations import Outcome
from .types import Post

NOTICE_ENTRIES = 1000


class Notices:
    """`take` gets them in order, one for each call that `post` runs: a region of very many small
    entries goes in pieces, between which that thread does other things."""

    def __init__(self, post: Post, take: Callable[[Outcome], None]) -> None:
        self._post = post
        self._take = take
        self._waiting: deque[Outcome] = deque()
        self._lock = threading.Lock()

    def put(self, outcome: Outcome) -> None:
        """Any thread."""
        removed = outcome.removed
        pieces = [
            Outcome(removed=removed[start : start + NOTICE_ENTRIES])
            for start in range(0, len(removed) - NOTICE_ENTRIES, NOTICE_ENTRIES)
        ]
        outcome.removed = removed[len(pieces) * NOTICE_ENTRIES :]
        with self._lock:
            is_first = not self._waiting
            self._waiting.extend([*pieces, outcome])
        if is_first:
            self._post(self._take_next)

    def _take_next(self) -> None:
        try:
            self._take(self._waiting[0])
        finally:
            with self._lock:
                self._waiting.popleft()
                has_more = bool(self._waiting)
            if has_more:
                self._post(self._take_next)
