"""How fast a path is, measured while it is busy."""

from __future__ import annotations

SAMPLE_BYTES = 1 << 20
"""Less says more about latency than about bandwidth."""
_WEIGHT = 0.3
FORGET_SECONDS = 10.0
"""A slow path that is avoided is measured again after so long."""


class Rate:
    """Moving average over the samples of one path."""

    def __init__(self) -> None:
        self._per_second: float | None = None
        self._sampled_at = 0.0
        self._since = 0.0
        self._bytes = 0

    def began(self, now: float) -> None:
        """The path was idle and is no more."""
        self._since, self._bytes = now, 0

    def moved(self, num_bytes: int, now: float) -> None:
        self._bytes += num_bytes
        elapsed = now - self._since
        if self._bytes < SAMPLE_BYTES or elapsed <= 0:
            return
        sample, known = self._bytes / elapsed, self.per_second(now)
        self._per_second = sample if known is None else known + _WEIGHT * (sample - known)
        self._sampled_at = now
        self.began(now)

    def per_second(self, now: float) -> float | None:
        """Bytes; None: not known, or not any more."""
        return self._per_second if now - self._sampled_at < FORGET_SECONDS else None
