"""How much of a fill is asked for at once."""

from __future__ import annotations

CHUNK_SECONDS = 0.05
"""A chunk is what comes in that time: where bytes come slowly, layers are told one by one, and
little is on its way when nobody wants it any more; where they come fast, slices are large."""
FIRST_BYTES = 256 << 10
"""While the pace is unknown."""
MOST_BYTES = 16 << 20
MEMORY_SECONDS = 1.0
"""When bytes were on their way for that long, what was seen before counts half."""


class ChunkPace:
    """Of one peer, by what came from it so far in all its fills. Pure: times are passed in
    (monotonic seconds)."""

    def __init__(self) -> None:
        self._under_way = 0  # chunks
        self._seen_at = 0.0
        self._bytes = 0.0
        self._seconds = 0.0  # in which something was on its way

    def asked(self, now: float) -> None:
        self._pass(now)
        self._under_way += 1

    def came(self, num_bytes: int, now: float) -> None:
        """A chunk has ended, and so much of it has come."""
        self._pass(now)
        self._under_way -= 1
        self._bytes += num_bytes
        if self._seconds > MEMORY_SECONDS:
            self._bytes /= 2
            self._seconds /= 2

    def chunk_bytes(self) -> int:
        """Of the next one."""
        if not self._bytes:
            return FIRST_BYTES
        if self._bytes * CHUNK_SECONDS >= self._seconds * MOST_BYTES:
            return MOST_BYTES
        return int(self._bytes * CHUNK_SECONDS / self._seconds)

    def _pass(self, now: float) -> None:
        if self._under_way:
            self._seconds += now - self._seen_at
        self._seen_at = now
