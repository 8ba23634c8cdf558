"""Requests that write entries."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ... import wire
from ...errors import InvalidRequest
from ...keys import EntryId, is_block
from ...store import ReserveResult
from ...types import IfExists, PutResult
from ..answers import Deferred, Incoming
from ..buffers import PayloadSink, Piece
from ..peer import Peer
from ..settings import PEERS_NEED
from . import checks
from .changing import once_agreed, once_spread
from .durable import once_dropped

LEAST_TTL_SECONDS = 0.001
_NOTHING: frozenset[bytes] = frozenset()


def reserve(peer: Peer, message: wire.Reserve) -> wire.Reserved:
    checks.same_length(entries=message.entries, sizes=message.sizes)
    entries = check_write(peer, message)
    return reserved_reply(reserve_room(peer, message, entries, shared_memory=peer.shared_memory))


def reserved_reply(results: list[ReserveResult]) -> wire.Reserved:
    """The first reason given stands for all."""
    reason = next((result.reason for result in results if result.reason), "")
    return wire.Reserved(
        [
            (int(got.status), got.slot, got.generation, got.segment, got.offset, got.writable)
            for got in results
        ],
        reason,
    )


def write(peer: Peer, message: wire.Write, payload_bytes: int) -> Incoming:
    checks.reservation(message.slot, message.generation)
    room = len(peer.store.reserved_buffer(peer.owner, message.slot, message.generation))
    if not 0 <= message.offset <= room - payload_bytes:
        raise InvalidRequest(
            f"write of {payload_bytes} bytes at offset {message.offset}; the entry has {room}"
        )
    piece = Piece(message.slot, message.generation, message.offset, payload_bytes)
    return Incoming(PayloadSink(peer.store.buffer, [piece]), wire.Ok)


def advance(peer: Peer, message: wire.Advance) -> wire.Ok:
    checks.reservations(message.slots, message.generations)
    peer.store.advance(
        peer.owner,
        message.slots,
        message.generations,
        message.extent,
        message.checksums,
    )
    return wire.Ok()


def commit(peer: Peer, message: wire.Commit) -> wire.PutReply | Deferred:
    checks.reservations(message.slots, message.generations)
    return commit_reserved(peer, message)


def commit_reserved(peer: Peer, message: wire.Commit) -> wire.PutReply | Deferred:
    """Replaces wait until no other store has an older value, puts of strings with replicas until
    others have this one. Replicas of blocks are made afterwards."""
    changes = peer.sources.changes
    if changes is None:
        return _commit_here(peer, message)
    purposes = [
        peer.store.purpose(peer.owner, slot, generation)
        for slot, generation in zip(message.slots, message.generations, strict=True)
    ]
    blocks = [each for each in purposes if each is not None and is_block(each.entry)]
    strings = [each for each in purposes if each is not None and not is_block(each.entry)]
    changes.check_writable([each.entry for each in strings])
    replaced = [each.entry for each in strings if each.if_exists == "replace"]
    replicas = max([each.replicas for each in strings], default=1)

    def act(_: AbstractSet[EntryId]) -> wire.PutReply | Deferred:
        answer = _commit_here(peer, message)
        for wanted in {each.replicas for each in blocks} - {1}:
            changes.replicate([each.entry for each in blocks if each.replicas == wanted], wanted)
        if replicas == 1 or len(strings) < len(purposes):
            return answer
        return once_spread(changes, [each.entry for each in strings], replicas, answer)

    return once_agreed(changes, replaced, act) if replaced else act(frozenset())


def _commit_here(peer: Peer, message: wire.Commit) -> wire.PutReply | Deferred:
    results = peer.store.commit(
        peer.owner, message.slots, message.generations, message.checksums, peer.clock()
    )
    reply = wire.PutReply([_wire_result(result) for result in results])
    return once_dropped(peer, peer.store.take_renewed(), reply)


def abort(peer: Peer, message: wire.Abort) -> wire.Ok:
    checks.reservations(message.slots, message.generations)
    peer.store.abort(peer.owner, message.slots, message.generations)
    return wire.Ok()


def check_write(peer: Peer, message: wire.Put | wire.Reserve) -> list[EntryId]:
    """Its entries, when all that it says may be said."""
    checks.seconds("ttl_s", message.ttl_s, least=LEAST_TTL_SECONDS)
    checks.unsigned("sizes", message.sizes, wire.MAX_PAYLOAD_BYTES)
    check_replicas(peer, message.replicas)
    return checks.string_ids(message.entries)


def reserve_room(
    peer: Peer, message: wire.Put | wire.Reserve, entries: list[EntryId], *, shared_memory: bool
) -> list[ReserveResult]:
    return peer.store.reserve(
        peer.owner,
        entries,
        message.sizes,
        if_exists=message.if_exists,
        ttl_s=message.ttl_s,
        soft_pin=message.soft_pin,
        shared_memory=shared_memory,
        elsewhere=that_must_stay(peer, message.if_exists, entries),
        replicas=message.replicas,
        now=peer.clock(),
    )


def check_replicas(peer: Peer, replicas: int) -> None:
    """Also whether there are so many stores now."""
    check_wanted_replicas(peer, replicas)
    if peer.sources.changes is not None:
        peer.sources.changes.check_replicas(replicas)


def check_wanted_replicas(peer: Peer, replicas: int) -> None:
    if not 1 <= replicas <= wire.MAX_REPLICAS:
        raise InvalidRequest(f"replicas is {replicas}; it must lie in 1..{wire.MAX_REPLICAS}")
    if replicas > 1 and peer.sources.changes is None:
        raise InvalidRequest(f"replicas is {replicas}; this store has no peers: {PEERS_NEED}")


def that_must_stay(peer: Peer, if_exists: IfExists, entries: Sequence[bytes]) -> AbstractSet[bytes]:
    """What lies on disk: a put that keeps what there is may not hide it."""
    if if_exists == "replace" or peer.tiering is None:
        return _NOTHING
    return frozenset(peer.tiering.on_disk([EntryId(entry) for entry in entries]))


def _wire_result(result: PutResult) -> tuple[int, str]:
    return int(result.status), result.reason
