"""What each client process holds of something that all share, and the most that one may."""

from __future__ import annotations

from moontide.transfer.types import Instance

from .types import PoolSettings

Amount = tuple[int, int]
"""(bytes, entries)"""
_NOTHING = (0, 0)


class Shares:
    """Bounds in bytes and in entries: tiny entries use up slots long before bytes. Whoever holds
    nothing may take one entry of any size, so that a small pool still takes large values."""

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self.max_bytes = max_bytes
        self.max_entries = max(max_entries, 1)
        self._held: dict[Instance, Amount] = {}

    @classmethod
    def of(cls, settings: PoolSettings, ratio: float) -> Shares:
        """`ratio` of the pool's bytes and of its entries."""
        return cls(int(ratio * settings.capacity_bytes), int(ratio * settings.max_entries))

    def held(self, client: Instance) -> Amount:
        return self._held.get(client, _NOTHING)

    def admits(self, client: Instance, num_bytes: int, num_entries: int = 1) -> bool:
        held_bytes, held_entries = self.held(client)
        if not held_entries and num_entries == 1:
            return True
        return (
            held_bytes + num_bytes <= self.max_bytes
            and held_entries + num_entries <= self.max_entries
        )

    def take(self, client: Instance, num_bytes: int, num_entries: int = 1) -> None:
        """Whether it may is `admits`' to say."""
        held_bytes, held_entries = self.held(client)
        self._held[client] = (held_bytes + num_bytes, held_entries + num_entries)

    def give_back(self, client: Instance, num_bytes: int, num_entries: int = 1) -> None:
        held_bytes, held_entries = self._held.pop(client)
        if held_entries > num_entries:
            self._held[client] = (held_bytes - num_bytes, held_entries - num_entries)

    def total(self) -> Amount:
        held = self._held.values()
        return sum(num_bytes for num_bytes, _ in held), sum(num_entries for _, num_entries in held)
