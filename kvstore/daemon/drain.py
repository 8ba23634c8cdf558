"""Draining: no more writes are taken, reads go on, and what is here goes to disk.

taking ──begin──► draining ──end──► taking
"""

from __future__ import annotations

import time

from .. import wire
from ..errors import StoreUnavailable
from .tiers import Tiering

FLUSH_SECONDS = 30.0
_WRITES = (
    wire.Put,
    wire.Reserve,
    wire.ReserveBlocks,
    wire.ReserveRun,
    wire.Prefetch,
    wire.PrefetchBlocks,
    wire.FetchBlocks,
)
"""What begins something here. What is under way may end."""


class Drain:
    def __init__(self, tiering: Tiering | None) -> None:
        self._tiering = tiering
        self.is_on = False

    async def begin(self) -> bool:
        """True when everything that can be on disk is there; false without a disk, or when it was
        not done in FLUSH_SECONDS."""
        self.is_on = True
        if self._tiering is None:
            return False
        return await self._tiering.flush(time.monotonic() + FLUSH_SECONDS)

    def end(self) -> None:
        self.is_on = False
        if self._tiering is not None:
            self._tiering.resume()

    def check(self, message: wire.Request) -> None:
        """Raises StoreUnavailable (retryable) for what is not taken now."""
        if self.is_on and isinstance(message, _WRITES):
            raise StoreUnavailable(
                "this store is draining: it takes no writes; use another node's, or undrain it"
            )
