"""Requests that wait for layers of entries still being written or filled."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial

from ... import wire
from ...errors import StoreTimeout, ViewExpired
from ..answers import Deferred, Respond
from ..peer import Peer
from . import checks

LEAST_WAIT_SECONDS = 0.001


def await_extent(peer: Peer, message: wire.AwaitExtent) -> Deferred:
    checks.reservation(message.slot, message.generation)
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_WAIT_SECONDS)
    what = f"extent {message.extent} of slot {message.slot}"
    ended = ViewExpired(f"{what}: the entry ended before it was complete; look it up again")
    late = StoreTimeout(f"{what} was not complete within {message.timeout_s:g} s")

    def start(respond: Respond) -> Callable[[], None]:
        def tell(complete: bool) -> None:
            respond(wire.Ok() if complete else wire.Failure(ended.code, str(ended)))

        return peer.store.watch_extent(message.slot, message.generation, message.extent, tell)

    return Deferred(message.timeout_s, start, wire.Failure(late.code, str(late)))


def await_extents(peer: Peer, message: wire.AwaitExtents) -> Deferred:
    checks.reservations(message.slots, message.generations)
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_WAIT_SECONDS)
    late = StoreTimeout(
        f"extent {message.extent} of {len(message.slots)} entries was not complete within "
        f"{message.timeout_s:g} s"
    )
    return Deferred(
        message.timeout_s,
        lambda respond: _ExtentsWait(peer, message, respond).start(),
        wire.Failure(late.code, str(late)),
    )


class _ExtentsWait:
    """One AwaitExtents. Checksums are taken as each extent completes: later its entry may end."""

    def __init__(self, peer: Peer, message: wire.AwaitExtents, respond: Respond) -> None:
        self._store = peer.store
        self._message = message
        self._respond = respond
        self._missing = len(message.slots)
        self._complete = bytearray(self._missing)
        self._checksums = array("Q", bytes(8 * self._missing))
        self._cancels: list[Callable[[], None]] = []

    def start(self) -> Callable[[], None]:
        """Returns what ends the wait. Raises InvalidRequest or Busy with nothing left behind."""
        message = self._message
        if not message.slots:
            self._answer()
        try:
            for index, slot in enumerate(message.slots):
                self._cancels.append(
                    self._store.watch_extent(
                        slot, message.generations[index], message.extent, partial(self._told, index)
                    )
                )
        except BaseException:
            self._cancel()
            raise
        return self._cancel

    def _told(self, index: int, complete: bool) -> None:
        if complete:
            self._complete[index] = 1
            self._checksums[index] = self._store.checksum(
                self._message.slots[index], self._message.extent
            )
        self._missing -= 1
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        self._respond(wire.ExtentsReply(bytes(self._complete), self._checksums.tobytes()))

    def _cancel(self) -> None:
        for cancel in self._cancels:
            cancel()
