"""The asyncio mirror of PinnedKeys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .pinned import Key, PinnedKeys
from .view import View

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AsyncPinnedKeys:
    """As PinnedKeys. `call` runs one of its methods off the event loop."""

    def __init__(self, pinned: PinnedKeys, call: Callable[..., Awaitable[Any]]) -> None:
        self.keys = pinned.keys
        self._pinned = pinned
        self._call = call

    async def view(self, key: Key, *, timeout_s: float | None = None) -> View:
        view: View = await self._call(timeout_s, self._pinned.view, key)
        return view

    async def get_into(self, key: Key, buffer: Buffer, *, timeout_s: float | None = None) -> int:
        size: int = await self._call(timeout_s, self._pinned.get_into, key, buffer)
        return size

    async def renew(self, ttl_s: float, *, timeout_s: float | None = None) -> None:
        await self._call(timeout_s, self._pinned.renew, ttl_s)

    async def release(self) -> None:
        """Without waiting, unless the daemon speaks version 1. Idempotent."""
        await asyncio.to_thread(self._pinned.release)

    async def __aenter__(self) -> AsyncPinnedKeys:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.release()
