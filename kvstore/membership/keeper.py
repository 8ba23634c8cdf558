"""Keeps one record registered for as long as a daemon runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..errors import Conflict, StoreError
from .file import boottime
from .records import Membership, Record, Registration

logger = logging.getLogger(__name__)

DEFAULT_TTL_S = 6.0


class Keeper:
    """Renews every third of the TTL, in a thread off the loop; registers again when the lease ended
    or the membership was wiped. A membership that is away is retried and never ends the daemon."""

    def __init__(
        self,
        membership: Membership,
        record: Record,
        *,
        ttl_s: float = DEFAULT_TTL_S,
        clock: Callable[[], float] = boottime,
        on_lapse: Callable[[], None] | None = None,
        on_return: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`on_lapse` is called, on the loop, before a record is registered again whose lease may
        have ended meanwhile: others may have acted as if we were gone. `on_return` is awaited once
        it is registered."""
        self._on_lapse = on_lapse
        self._on_return = on_return
        self._membership = membership
        self._record = record
        self._ttl_s = ttl_s
        self._clock = clock
        self._registration: Registration | None = None
        self._held_until = 0.0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lease surely lives: false before it can have ended, by our own clock."""
        return self.is_held_for(0.0)

    def is_held_for(self, seconds: float) -> bool:
        """Whether it surely lives for so long from now on."""
        return self._clock() + seconds < self._held_until

    async def start(self) -> None:
        """Register. Raises Conflict when the name is taken, StoreError when it cannot be done."""
        await self._register()
        self._task = asyncio.create_task(self._run(), name="membership-keeper")

    def update(self, record: Record) -> None:
        """Tell something else from now on; same id and instance."""
        self._record = record
        self._changed.set()

    async def close(self) -> None:
        """Leave. A membership that cannot be reached lets the lease run out."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        self._held_until = 0.0
        if self._registration is not None:
            try:
                await asyncio.to_thread(self._membership.leave, self._registration)
            except (StoreError, OSError) as error:
                logger.warning("membership_leave_failed error=%s", error)

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._ttl_s / 3):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self._renew()
            except (StoreError, OSError) as error:
                level = logging.ERROR if isinstance(error, Conflict) else logging.WARNING
                logger.log(
                    level, "membership_renewal_failed id=%s error=%s", self._record.id, error
                )

    async def _renew(self) -> None:
        registration = self._registration
        asked_at = self._clock()
        if (
            registration is not None
            and registration.record == self._record
            and await asyncio.to_thread(self._membership.renew, registration)
        ):
            self._held_until = asked_at + self._ttl_s
            return
        if registration is not None and registration.record == self._record:
            self._held_until = 0.0  # it ended, whatever our clock says: the membership was wiped
        await self._register()

    async def _register(self) -> None:
        has_lapsed = self._registration is not None and not self.is_held
        if has_lapsed and self._on_lapse is not None:
            logger.warning("membership_lapsed id=%s", self._record.id)
            self._on_lapse()
        asked_at = self._clock()
        self._registration = await asyncio.to_thread(
            self._membership.register, self._record, self._ttl_s
        )
        self._held_until = asked_at + self._ttl_s
        if has_lapsed and self._on_return is not None:
            await self._on_return()
