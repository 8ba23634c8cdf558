"""Requests that end something: entries, pins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain

from ... import wire
from ...errors import InvalidRequest, StoreError, StoreTimeout
from ...keys import EntryId, is_block
from ...store import Sweep
from ..answers import Deferred, Respond
from ..peer import Peer
from ..sources import ClearEverywhere
from . import checks
from .changing import once_agreed
from .durable import once_dropped, outcome

CLEAR_SECONDS = 60.0
"""A disk that takes longer is broken: the client hears that it is not sure."""


def remove(peer: Peer, message: wire.Remove) -> wire.CountReply | Deferred:
    """From every node."""
    entries = checks.removable_ids(message.entries)
    checks.namespaces(message.namespaces)
    changes = peer.sources.changes
    if message.fence_s is not None:
        return _fence(peer, entries, message, message.fence_s)
    if changes is None:
        return _remove_here(peer, entries)
    act = partial(_remove_here, peer, entries)
    return once_agreed(changes, entries, act, namespaces=message.namespaces)


def _fence(
    peer: Peer, entries: list[EntryId], message: wire.Remove, seconds: float
) -> wire.CountReply | Deferred:
    """Another store changes these entries: ours go, and no others come until it is done."""
    checks.seconds("fence_s", seconds)
    changes = peer.sources.changes
    if changes is None:
        raise InvalidRequest("this store has no peers: it fences nothing")
    if seconds:
        changes.fence(entries, str(peer.client), seconds, message.known)
        return _remove_here(peer, entries)
    checks.same_length(namespaces=message.namespaces, numbers=message.numbers)
    numbers = dict(zip(message.namespaces, message.numbers, strict=True))
    changes.unfence(entries, str(peer.client), numbers)
    return wire.CountReply(0)


def _remove_here(
    peer: Peer, entries: list[EntryId], dropped: AbstractSet[EntryId] = frozenset()
) -> wire.CountReply | Deferred:
    """Answered once the removal is durable on disk too. Counts each entry once, those that other
    stores `dropped` too."""
    blocks = {entry: _shards_of(peer, entry) for entry in entries if is_block(entry)}
    ids = [entry for entry in entries if entry not in blocks]
    ids += chain.from_iterable(blocks.values())
    here = set(ids).difference(peer.store.absent(ids, peer.clock()))
    here.update(peer.tiering.on_disk(ids) if peer.tiering else ())
    removed = {block for block, shards in blocks.items() if not here.isdisjoint(shards)}
    removed.update(here.intersection(entries), dropped)
    reply = wire.CountReply(len(removed), bytes([entry in removed for entry in entries]))
    peer.store.remove(ids, peer.clock())
    return once_dropped(peer, ids, reply)


def _shards_of(peer: Peer, block: EntryId) -> list[EntryId]:
    """Those that may lie here."""
    on_disk = peer.tiering.locate_key(block) if peer.tiering is not None else []
    found = [*peer.store.ids_of(block), *(EntryId(location.entry) for location in on_disk)]
    return list(dict.fromkeys(found))


def clear(peer: Peer, message: wire.Clear) -> Deferred:
    """In force at once; answered when nobody can read any more of it, and its removal is durable.
    Others have their turns meanwhile, and what they put stays. Counts what lay in DRAM, and of what
    lay only on disk nothing."""
    everywhere = peer.sources.clear
    if everywhere is not None and not message.local_only:
        return _clear_everywhere(everywhere, b"" if message.strings_only else message.namespace)

    def start(respond: Respond) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        sweep = peer.store.begin_clear(message.namespace, strings_only=message.strings_only)
        is_durable = loop.create_future()
        if peer.tiering is None:
            is_durable.set_result(True)
        else:
            namespace = message.namespace.hex() if message.namespace is not None else None
            peer.tiering.clear("" if message.strings_only else namespace, is_durable.set_result)
        task = loop.create_task(_clear(sweep, is_durable), name="clear")
        task.add_done_callback(lambda done: None if done.cancelled() else respond(done.result()))
        return lambda: None  # it goes on, whoever still waits for it

    late = StoreTimeout(f"nothing of it is found any more; it takes more than {CLEAR_SECONDS:g} s")
    return Deferred(CLEAR_SECONDS, start, wire.Failure(late.code, str(late)))


def _clear_everywhere(clear: ClearEverywhere, namespace: bytes | None) -> Deferred:
    """As `clear`, at all nodes."""

    async def run(respond: Respond) -> None:
        try:
            respond(wire.CountReply(await clear(namespace)))
        except StoreError as error:
            respond(wire.Failure(error.code, str(error)))

    def start(respond: Respond) -> Callable[[], None]:
        asyncio.get_running_loop().create_task(run(respond), name="clear-everywhere")
        return lambda: None  # it goes on, whoever still waits for it

    late = StoreTimeout(f"the clear is not durable everywhere; it takes over {CLEAR_SECONDS:g} s")
    return Deferred(CLEAR_SECONDS, start, wire.Failure(late.code, str(late)))


async def _clear(sweep: Sweep, is_durable: Awaitable[bool]) -> wire.Reply:
    for _ in sweep:
        await asyncio.sleep(0)  # let others have a turn
    durable = await is_durable
    return outcome(wire.CountReply(sweep.num_gone), durable=durable)


def unpin(peer: Peer, message: wire.Unpin) -> wire.Ok:
    checks.read_bytes(message.read_bytes)
    peer.store.unpin(peer.owner, message.ticket, message.read_bytes)
    return wire.Ok()


def renew(peer: Peer, message: wire.RenewTicket) -> wire.Ok:
    checks.seconds("ttl_s", message.ttl_s)
    peer.store.renew(message.ticket, message.ttl_s, peer.clock())
    return wire.Ok()


def report_corrupt(peer: Peer, message: wire.ReportCorrupt) -> wire.Ok:
    checks.reservation(message.slot, message.generation)
    peer.store.report_corrupt(message.slot, message.generation)
    return wire.Ok()
