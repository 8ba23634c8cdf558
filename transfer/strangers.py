"""Who may wait before having proved anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

GuestT = TypeVar("GuestT")


@dataclass(frozen=True, slots=True)
class StrangerLimits:
    total: int
    per_address: int

    @classmethod
    def within(cls, max_connections: int) -> StrangerLimits:
        """Half of them, and half of those for one address: the rest is for who is known."""
        total = max(max_connections // 2, 1)
        return cls(total, max(total // 2, 1))


class Strangers(Generic[GuestT]):
    """Connections of which nobody has proved the token yet. Who comes when there are too many ends
    one that has waited longest: those that stay silent never keep out those that speak."""

    def __init__(self, limits: StrangerLimits) -> None:
        self._limits = limits
        self._addresses: dict[GuestT, str] = {}  # in the order they came
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[GuestT]:
        """In the order they came."""
        return iter(list(self._addresses))

    def arrived(self, guest: GuestT, address: str) -> GuestT | None:
        """Whom to end for it: of its own address, or of the one that has most."""
        crowd = None
        if self._counts[address] >= self._limits.per_address:
            crowd = address
        elif len(self) >= self._limits.total:
            crowd = max(self._counts, key=self._counts.__getitem__)
        longest = None
        if crowd is not None:
            longest = next(each for each, of in self._addresses.items() if of == crowd)
            self.left(longest)
        self._addresses[guest] = address
        self._counts[address] += 1
        return longest

    def left(self, guest: GuestT) -> None:
        """It proved the token, or is gone. Others are left alone."""
        address = self._addresses.pop(guest, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def check_integrity(self) -> None:
        assert self._counts == Counter(self._addresses.values())
        assert len(self) <= self._limits.total
        assert all(count <= self._limits.per_address for count in self._counts.values())
