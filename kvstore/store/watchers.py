"""Who waits for a layer extent of a reservation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

from ..errors import Busy
from .types import ExtentCallback

MAX_WATCHERS = 65536


class Watchers:
    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[int, ExtentCallback]]] = {}
        self._count = 0

    def __contains__(self, slot: int) -> bool:
        return slot in self._waiting

    def add(self, slot: int, extent: int, callback: ExtentCallback) -> Callable[[], None]:
        if self._count >= MAX_WATCHERS:
            raise Busy(f"{MAX_WATCHERS} layer extents are awaited already; retry later")
        item = (extent, callback)
        self._waiting.setdefault(slot, []).append(item)
        self._count += 1

        def cancel() -> None:
            waiting = self._waiting.get(slot, [])
            if item in waiting:
                waiting.remove(item)
                self._count -= 1
                if not waiting:
                    del self._waiting[slot]

        return cancel

    def advanced(self, watermarks: Iterable[tuple[int, int]]) -> None:
        """In these slots, extents below the watermark are complete. Told layer by layer."""
        due: list[tuple[int, ExtentCallback]] = []
        for slot, watermark in watermarks:
            waiting = self._waiting.pop(slot, [])
            still = [item for item in waiting if item[0] >= watermark]
            if still:
                self._waiting[slot] = still
            due += [item for item in waiting if item[0] < watermark]
        self._count -= len(due)
        for _, callback in sorted(due, key=itemgetter(0)):
            callback(True)

    def ended(self, slot: int) -> None:
        """Nothing more will be written to this reservation."""
        waiting = self._waiting.pop(slot, [])
        self._count -= len(waiting)
        for _, callback in waiting:
            callback(False)
