"""How much of a fill is asked for at once."""

from __future__ import annotations

CHUNK_SECONDS = 0.05
"""A chunk is what comes in that time: where bytes come slowly, layers are told one by one, and
little is on its way when nobody wants it any more; where they come fast, slices are large."""
FIRST_BYTES = 1 << 20
"""While the pace is unknown."""
MOST_BYTES = 8 << 20


class ChunkPace:
    """By what came so far. Pure: times are passed in (monotonic seconds)."""

    def __init__(self) -> None:
        self._asked: list[float] = []  # chunks under way, oldest first
        self._came_at = 0.0
        self._bytes = 0
        self._seconds = 0.0  # in which something was on its way

    def asked(self, now: float) -> None:
        self._asked.append(now)

    def came(self, num_bytes: int, now: float) -> None:
        """The oldest chunk under way, or it failed."""
        self._seconds += now - max(self._asked.pop(0), self._came_at)
        self._came_at = now
        self._bytes += num_bytes

    def chunk_bytes(self) -> int:
        """Of the next one."""
        if not self._bytes:
            return FIRST_BYTES
        if self._bytes * CHUNK_SECONDS >= self._seconds * MOST_BYTES:
            return MOST_BYTES
        return int(self._bytes * CHUNK_SECONDS / self._seconds)
