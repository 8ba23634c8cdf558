"""Memory of the daemon's own that connections share."""

from __future__ import annotations

from ..errors import Busy


class Budget:
    """At most `limit_bytes` at a time, or a single larger piece. `purpose` is for messages."""

    def __init__(self, limit_bytes: int, purpose: str) -> None:
        self._limit_bytes = limit_bytes
        self._purpose = purpose
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self._limit_bytes

    def take(self, num_bytes: int) -> None:
        """Raises Busy when others hold too much of it."""
        if self.used_bytes and self.used_bytes + num_bytes > self._limit_bytes:
            raise Busy(
                f"{num_bytes} bytes for {self._purpose}; {self.used_bytes} are on their way "
                f"and at most {self._limit_bytes} may be: retry later"
            )
        self.used_bytes += num_bytes

    def add(self, num_bytes: int) -> None:
        """Counts what is there already. Who adds looks at `is_full` before it makes more."""
        self.used_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.used_bytes -= num_bytes
