"""Put: values that come with their message.

Values that are all new and small go into one run and are committed with it; for others there is a
reservation each. The client never hears of either: they end here, also when nothing comes of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ... import wire
from ...errors import InvalidRequest, StoreError
from ...keys import EntryId
from ...run_layout import laid_out
from ...store import ReserveResult
from ...types import PutStatus, ReserveStatus
from ..answers import Deferred, Incoming, Outgoing, mapped
from ..buffers import PayloadSink, Piece
from ..peer import Peer
from . import checks, runs
from .entries import check_write, commit_reserved, reserve_room, that_must_stay

_STORED = (int(PutStatus.STORED), "")


@dataclass(frozen=True, slots=True)
class _Put:
    peer: Peer
    message: wire.Put
    entries: list[EntryId]
    tail: bytearray  # for the checksums, where they come behind the values; else empty

    def checksums(self) -> list[int]:
        """Once all is here."""
        return self.message.checksums or memoryview(self.tail).cast("Q").tolist()


def put(peer: Peer, message: wire.Put, payload_bytes: int) -> Incoming:
    """Values that fit go straight into the pool; the others are received and dropped."""
    checks.same_length(
        entries=message.entries,
        sizes=message.sizes,
        checksums=message.checksums or message.entries,  # or all follow
    )
    checks.checksums(message.checksums)
    entries = check_write(peer, message)
    tail = bytearray(0 if message.checksums else 8 * len(entries))
    if sum(message.sizes) + len(tail) != payload_bytes:
        raise InvalidRequest(
            f"sizes add up to {sum(message.sizes)} bytes, with {len(tail)} of checksums behind "
            f"them; the payload has {payload_bytes}"
        )
    this = _Put(peer, message, entries, tail)
    return _into_run(this) or _into_reservations(this)


# -- one run for all --------------------------------------------------------------------


def _into_run(put: _Put) -> Incoming | None:
    """None where there is none, or where it would be filled for nothing."""
    peer, sizes = put.peer, put.message.sizes
    if len(put.entries) < 2 or not _are_new(put):
        return None
    offsets, num_bytes = laid_out(sizes)
    if num_bytes > peer.store.run_bytes:
        return None
    run = peer.store.reserve_daemon_run(peer.owner, num_bytes, peer.clock())
    if run.status is not ReserveStatus.RESERVED:
        return None
    reserved = partial(peer.store.run_buffer, peer.owner)
    sink = PayloadSink(reserved, _joined(run, offsets, sizes), put.tail)
    return Incoming(sink, partial(_commit_run, put, run, offsets))


def _are_new(put: _Put) -> bool:
    peer, entries, if_exists = put.peer, put.entries, put.message.if_exists
    return if_exists == "replace" or (
        peer.store.is_none_here(entries, peer.clock())
        and not that_must_stay(peer, if_exists, entries)
    )


def _joined(run: ReserveResult, offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[Piece]:
    """One piece for what lies without gaps."""
    if isinstance(offsets, range) and offsets.step == sizes[0]:
        yield Piece(run.slot, run.generation, 0, offsets.stop)
        return
    begin = end = 0
    for offset, size in zip(offsets, sizes, strict=True):
        if offset != end:
            yield Piece(run.slot, run.generation, begin, end - begin)
            begin = offset
        end = offset + size
    yield Piece(run.slot, run.generation, begin, end - begin)


def _commit_run(put: _Put, run: ReserveResult, offsets: Sequence[int]) -> wire.Reply | Deferred:
    peer, message = put.peer, put.message
    end = partial(peer.store.end_run, peer.owner, run.slot, run.generation)
    commit = wire.CommitRun(
        run.slot,
        run.generation,
        message.entries,
        _packed(offsets),
        _packed(message.sizes),
        _packed(put.checksums()),
        message.if_exists,
        message.ttl_s,
        message.soft_pin,
        message.replicas,
    )
    try:
        return mapped(runs.commit(peer, commit), _put_reply, end)
    except StoreError:
        end()
        raise


def _put_reply(reply: wire.Reply | Outgoing) -> wire.Reply | Outgoing:
    if not isinstance(reply, wire.RunReply):
        return reply
    if not any(reply.statuses):
        return wire.PutReply([_STORED] * len(reply.statuses))
    return wire.PutReply(
        [(status, reply.reason if status == PutStatus.FULL else "") for status in reply.statuses]
    )


def _packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


# -- a reservation each -----------------------------------------------------------------


def _into_reservations(put: _Put) -> Incoming:
    peer, sizes = put.peer, put.message.sizes
    reserved = reserve_room(peer, put.message, put.entries, shared_memory=False)
    pieces = [
        Piece(got.slot if _is_reserved(got) else -1, got.generation, 0, size)
        for got, size in zip(reserved, sizes, strict=True)
    ]
    sink = PayloadSink(peer.store.buffer, pieces, put.tail)
    return Incoming(sink, partial(_commit_reserved, put, reserved))


def _commit_reserved(put: _Put, reserved: list[ReserveResult]) -> wire.Reply | Deferred:
    peer, checksums = put.peer, put.checksums()
    mine = [index for index, got in enumerate(reserved) if _is_reserved(got)]
    results = [(int(got.status), got.reason) for got in reserved]  # the two enums agree

    def merge(reply: wire.Reply | Outgoing) -> wire.Reply | Outgoing:
        if not isinstance(reply, wire.PutReply):
            return reply
        for index, result in zip(mine, reply.results, strict=True):
            results[index] = result
        return wire.PutReply(results)

    message = wire.Commit(
        [reserved[index].slot for index in mine],
        [reserved[index].generation for index in mine],
        [checksums[index] for index in mine],
    )
    end = partial(_abort_open, peer, message)
    try:
        return mapped(commit_reserved(peer, message), merge, end)
    except StoreError:
        end()
        raise


def _abort_open(peer: Peer, message: wire.Commit) -> None:
    """Those that were not committed."""
    places = [
        place
        for place in zip(message.slots, message.generations, strict=True)
        if peer.store.purpose(peer.owner, *place) is not None
    ]
    peer.store.abort(peer.owner, [slot for slot, _ in places], [each for _, each in places])


def _is_reserved(result: ReserveResult) -> bool:
    return result.status is ReserveStatus.RESERVED
