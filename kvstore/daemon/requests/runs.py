"""Requests of clients that write and read without asking for each entry: runs, and what they tell
afterwards."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ... import wire
from ...errors import InvalidRequest
from ...keys import EntryId
from ...store import Pieces, RunOptions
from ..answers import Deferred, Silence
from ..peer import Peer
from . import checks
from .changing import once_agreed, once_spread
from .durable import once_dropped
from .entries import LEAST_TTL_SECONDS, check_replicas, reserved_reply, that_must_stay


def reserve(peer: Peer, message: wire.ReserveRun) -> wire.Reserved:
    if not peer.shared_memory:
        raise InvalidRequest(
            "this connection shares no memory with the store, so it can write no run; use Put"
        )
    return reserved_reply([peer.store.reserve_run(peer.owner, message.num_bytes, peer.clock())])


def commit(peer: Peer, message: wire.CommitRun) -> wire.RunReply | Deferred:
    """Waits as `Commit` does."""
    checks.reservation(message.slot, message.generation)
    checks.seconds("ttl_s", message.ttl_s, least=LEAST_TTL_SECONDS)
    check_replicas(peer, message.replicas)
    changes = peer.sources.changes
    if changes is None:
        return _commit_here(peer, message)
    entries = checks.string_ids(message.entries)
    changes.check_writable(entries)

    def act(_: AbstractSet[EntryId]) -> wire.RunReply | Deferred:
        answer = _commit_here(peer, message)
        if message.replicas == 1:
            return answer
        return once_spread(changes, entries, message.replicas, answer)

    return (
        once_agreed(changes, entries, act) if message.if_exists == "replace" else act(frozenset())
    )


def _commit_here(peer: Peer, message: wire.CommitRun) -> wire.RunReply | Deferred:
    pieces = Pieces(message.entries, message.offsets, message.sizes, message.checksums)
    options = RunOptions(
        message.if_exists,
        message.ttl_s,
        message.soft_pin,
        that_must_stay(peer, message.if_exists, message.entries),
    )
    done = peer.store.commit_run(
        peer.owner, message.slot, message.generation, pieces, options, peer.clock()
    )
    reply = wire.RunReply(done.statuses, done.slots, done.generations, done.reason)
    return once_dropped(peer, done.stored, reply)


def note_use(peer: Peer, message: wire.NoteUse) -> Silence:
    checks.read_bytes(message.read_bytes)
    slots, generations = checks.numbers(message.slots), checks.numbers(message.generations)
    checks.same_length(slots=slots, generations=generations)
    checks.same_length(tickets=message.tickets)
    used = peer.store.note_use(peer.owner, slots, generations, message.read_bytes, peer.clock())
    if peer.tiering is not None:
        peer.tiering.touch(used)
    for ticket in message.tickets:
        peer.store.let_go(peer.owner, ticket)
    return Silence()
