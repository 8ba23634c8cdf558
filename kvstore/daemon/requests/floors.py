"""What stores tell each other of floors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ... import wire
from ...errors import Busy, StoreTimeout
from ..answers import Deferred, Respond
from ..peer import Peer

READ_SECONDS = 5.0


def read(peer: Peer, message: wire.ReadFloors) -> wire.Ok | Deferred:
    """Answered once what the membership says is in force."""
    floors = peer.floors
    if floors is None:
        return wire.Ok()

    def start(respond: Respond) -> Callable[[], None]:
        task = asyncio.get_running_loop().create_task(floors.read(), name="floors-read")
        task.add_done_callback(lambda done: None if done.cancelled() else respond(wire.Ok()))
        return lambda: None  # it goes on: others need it too

    late = StoreTimeout(f"the floors could not be read within {READ_SECONDS:g} s")
    return Deferred(READ_SECONDS, start, wire.Failure(late.code, str(late)))


def check(peer: Peer, message: wire.LookupBlocks) -> None:
    """Whether what lies here is what another store may be given. Raises Busy while it knows of a
    higher floor than we do; we hear of it in a moment."""
    if not message.floor:
        return
    digest = peer.store.namespace(message.namespace).digest
    here = peer.floors.of(digest) if peer.floors is not None else 0
    if message.floor > here:
        raise Busy(
            f"the floor of namespace {digest.hex()[:16]} is {here} here and {message.floor} at the "
            "asker: retry once this store has read the membership"
        )
