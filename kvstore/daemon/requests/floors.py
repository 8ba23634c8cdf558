"""What stores tell each other of floors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ... import wire
from ...errors import Busy, StoreError, StoreTimeout
from ..answers import Deferred, Respond
from ..peer import Peer

READ_SECONDS = 5.0


def read(peer: Peer, message: wire.ReadFloors) -> wire.Ok | Deferred:
    """Answered once what the membership says is in force."""
    floors = peer.floors
    if floors is None:
        return wire.Ok()

    async def run(respond: Respond) -> None:
        try:
            await floors.read()
        except StoreError as error:
            respond(wire.Failure(error.code, str(error)))
        else:
            respond(wire.Ok())

    def start(respond: Respond) -> Callable[[], None]:
        asyncio.get_running_loop().create_task(run(respond), name="floors-read")
        return lambda: None  # it goes on: others need it too

    late = StoreTimeout(f"the floors could not be read within {READ_SECONDS:g} s")
    return Deferred(READ_SECONDS, start, wire.Failure(late.code, str(late)))


def check(peer: Peer, message: wire.LookupBlocks) -> None:
    """Whether what lies here is what another store may be given. Raises Busy while it knows of a
    higher floor than we do; we hear of it in a moment."""
    if message.floor:
        digest = peer.store.namespace(message.namespace).digest
        _check(peer, digest, f"namespace {digest.hex()[:16]}", message.floor)


def check_strings(peer: Peer, floor: int) -> None:
    """As `check`, of string entries."""
    if floor:
        _check(peer, b"", "string entries", floor)


def _check(peer: Peer, namespace: bytes, name: str, floor: int) -> None:
    here = peer.floors.of(namespace) if peer.floors is not None else 0
    if floor > here:
        raise Busy(
            f"the floor of {name} is {here} here and {floor} at the asker: retry once this store "
            "has read the membership"
        )
