"""Requests on entries, whichever key space they are in."""

from __future__ import annotations

from functools import partial

from ... import wire
from ...errors import InvalidRequest
from ...store import ReserveResult
from ...types import Extent, PutResult, ReserveStatus
from ..answers import Incoming, Outgoing
from ..buffers import PayloadSink, Piece
from ..peer import Peer
from . import checks

MAX_READ_BYTES = 16 << 20
"""Most bytes one Read copies (one extent may always be read)."""
LEAST_TTL_SECONDS = 0.001


# -- writing ----------------------------------------------------------------------


def put(peer: Peer, message: wire.Put, payload_bytes: int) -> Incoming:
    """Values that fit go straight into the pool; the others are received and dropped."""
    checks.same_length(entries=message.entries, sizes=message.sizes, checksums=message.checksums)
    checks.checksums(message.checksums)
    if sum(message.sizes) != payload_bytes:
        raise InvalidRequest(
            f"sizes add up to {sum(message.sizes)} bytes, the payload has {payload_bytes}"
        )
    reserved = _reserve(peer, message, shared_memory=False)
    pieces = [
        Piece(got.slot if _is_reserved(got) else -1, got.generation, 0, size)
        for got, size in zip(reserved, message.sizes, strict=True)
    ]
    sink = PayloadSink(peer.store, pieces)
    return Incoming(sink, partial(_finish_put, peer, message.checksums, reserved))


def _finish_put(peer: Peer, checksums: list[int], reserved: list[ReserveResult]) -> wire.PutReply:
    mine = [index for index, got in enumerate(reserved) if _is_reserved(got)]
    committed = peer.store.commit(
        peer.owner,
        [reserved[index].slot for index in mine],
        [reserved[index].generation for index in mine],
        [checksums[index] for index in mine],
        peer.clock(),
    )
    results = [(int(got.status), got.reason) for got in reserved]  # the two enums agree
    for index, result in zip(mine, committed, strict=True):
        results[index] = _wire_result(result)
    return wire.PutReply(results)


def reserve(peer: Peer, message: wire.Reserve) -> wire.Reserved:
    checks.same_length(entries=message.entries, sizes=message.sizes)
    return reserved_reply(_reserve(peer, message, shared_memory=peer.shared_memory))


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
    checks.reservations([message.slot], [message.generation])
    room = len(peer.store.reserved_buffer(peer.owner, message.slot, message.generation))
    if not 0 <= message.offset <= room - payload_bytes:
        raise InvalidRequest(
            f"write of {payload_bytes} bytes at offset {message.offset}; the entry has {room}"
        )
    piece = Piece(message.slot, message.generation, message.offset, payload_bytes)
    return Incoming(PayloadSink(peer.store, [piece]), wire.Ok)


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


def commit(peer: Peer, message: wire.Commit) -> wire.PutReply:
    checks.reservations(message.slots, message.generations)
    results = peer.store.commit(
        peer.owner, message.slots, message.generations, message.checksums, peer.clock()
    )
    return wire.PutReply([_wire_result(result) for result in results])


def abort(peer: Peer, message: wire.Abort) -> wire.Ok:
    checks.reservations(message.slots, message.generations)
    peer.store.abort(peer.owner, message.slots, message.generations)
    return wire.Ok()


def _reserve(
    peer: Peer, message: wire.Put | wire.Reserve, *, shared_memory: bool
) -> list[ReserveResult]:
    checks.seconds("ttl_s", message.ttl_s, least=LEAST_TTL_SECONDS)
    checks.unsigned("sizes", message.sizes, wire.MAX_PAYLOAD_BYTES)
    if message.replicas != 1:
        raise InvalidRequest(f"replicas is {message.replicas}; this version keeps exactly 1")
    return peer.store.reserve(
        peer.owner,
        checks.string_ids(message.entries),
        message.sizes,
        if_exists=message.if_exists,
        ttl_s=message.ttl_s,
        soft_pin=message.soft_pin,
        shared_memory=shared_memory,
        now=peer.clock(),
    )


def _is_reserved(result: ReserveResult) -> bool:
    return result.status is ReserveStatus.RESERVED


def _wire_result(result: PutResult) -> tuple[int, str]:
    return int(result.status), result.reason


# -- reading ----------------------------------------------------------------------


def lookup(peer: Peer, message: wire.Lookup) -> wire.LookupReply:
    checks.seconds("pin_s", message.pin_s)
    found, ticket = peer.store.lookup(
        peer.owner, checks.entry_ids(message.entries), message.pin_s, peer.clock()
    )
    return wire.LookupReply([*found], ticket)


def get(peer: Peer, message: wire.Get) -> Outgoing:
    """Values leave straight from the pool, pinned by a view of this connection until then."""
    store = peer.store
    found, ticket = store.lookup_to_send(
        peer.owner, checks.entry_ids(message.entries), peer.clock()
    )
    release = partial(store.unpin, peer.owner, ticket) if ticket else None
    num_bytes = sum(each.length for each in found if each)
    if num_bytes > wire.MAX_PAYLOAD_BYTES:
        if release:
            release()
        raise InvalidRequest(
            f"the values have {num_bytes} bytes, one reply {wire.MAX_PAYLOAD_BYTES}: ask for fewer"
        )
    return Outgoing(
        wire.GetReply(
            [each.length if each else -1 for each in found],
            [each.checksum if each else 0 for each in found],
        ),
        tuple([store.buffer(each.slot, each.generation) for each in found if each]),
        release=release,
    )


def read(peer: Peer, message: wire.Read) -> Outgoing:
    """Copies the extents out: what was pinned for this reader may end while they are sent."""
    checks.reservations(message.slots, message.generations)
    checks.same_length(slots=message.slots, extents=message.extents)
    extents = [
        _complete_extent(peer, slot, generation, index)
        for slot, generation, index in zip(
            message.slots, message.generations, message.extents, strict=True
        )
    ]
    complete = [extent.length for extent in extents if extent]
    num_bytes = sum(complete)
    if num_bytes > MAX_READ_BYTES and len(complete) > 1:
        raise InvalidRequest(
            f"the extents have more than {MAX_READ_BYTES} bytes: read fewer at once"
        )
    peer.copies.take(num_bytes)
    values = [
        memoryview(bytes(peer.store.buffer(slot, generation)[extent.offset :][: extent.length]))
        for slot, generation, extent in zip(
            message.slots, message.generations, extents, strict=True
        )
        if extent
    ]
    return Outgoing(
        wire.GetReply(
            [extent.length if extent else -1 for extent in extents],
            [extent.checksum if extent else 0 for extent in extents],
        ),
        tuple(values),
        release=partial(peer.copies.give_back, num_bytes),
    )


def _complete_extent(peer: Peer, slot: int, generation: int, index: int) -> Extent | None:
    try:
        extents = peer.store.extents(slot, generation)
    except InvalidRequest:  # that generation is gone: a miss
        return None
    return extents[index] if 0 <= index < len(extents) else None


def exists(peer: Peer, message: wire.Exists) -> wire.ExistsReply:
    return wire.ExistsReply(
        bytes(peer.store.exists(checks.entry_ids(message.entries), peer.clock()))
    )


# -- ending -----------------------------------------------------------------------


def remove(peer: Peer, message: wire.Remove) -> wire.CountReply:
    return wire.CountReply(peer.store.remove(checks.entry_ids(message.entries), peer.clock()))


def clear(peer: Peer, message: wire.Clear) -> wire.CountReply:
    return wire.CountReply(peer.store.clear(message.namespace, message.strings_only, peer.clock()))


def unpin(peer: Peer, message: wire.Unpin) -> wire.Ok:
    checks.read_bytes(message.read_bytes)
    peer.store.unpin(peer.owner, message.ticket, message.read_bytes)
    return wire.Ok()


def renew(peer: Peer, message: wire.RenewTicket) -> wire.Ok:
    checks.seconds("ttl_s", message.ttl_s)
    peer.store.renew(message.ticket, message.ttl_s, peer.clock())
    return wire.Ok()


def report_corrupt(peer: Peer, message: wire.ReportCorrupt) -> wire.Ok:
    checks.reservations([message.slot], [message.generation])
    peer.store.report_corrupt(message.slot, message.generation)
    return wire.Ok()
