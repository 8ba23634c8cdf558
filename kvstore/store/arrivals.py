"""Who waits for a block to appear."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import Busy

MAX_ARRIVAL_WATCHES = 16384

ArrivalCallback = Callable[[], None]


class Arrivals:
    """Watches of block keys. A callback runs whenever something of its block was reserved or
    committed, until it is cancelled: what that is worth, it asks the store."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[ArrivalCallback]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return self._count

    def watch(self, key: bytes, callback: ArrivalCallback) -> Callable[[], None]:
        """Returns what cancels it. Raises Busy beyond the bound."""
        if self._count >= MAX_ARRIVAL_WATCHES:
            raise Busy(f"{MAX_ARRIVAL_WATCHES} blocks are awaited already; retry later")
        self._waiting.setdefault(key, []).append(callback)
        self._count += 1

        def cancel() -> None:
            waiting = self._waiting.get(key, [])
            if callback in waiting:
                waiting.remove(callback)
                self._count -= 1
                if not waiting:
                    del self._waiting[key]

        return cancel

    def changed(self, keys: Iterable[bytes]) -> None:
        """Something of these blocks was reserved or committed."""
        for key in keys:
            for callback in tuple(self._waiting.get(key, ())):
                callback()
