"""One peer's connection at the server: requests in, segment memory out and in."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .. import wire
from ..errors import Malformed, Refused, Unavailable
from ..registry import Borrowed, SegmentRegistry
from ..types import Opcode, TransferCounters
from ..wire import HEADER_BYTES, Header, Kind
from .frames import Nowhere, behind, receive_all
from .pace import Pace
from .patience import be_patient

READ_AHEAD = 64
"""Requests received at once, and answered with one sendmsg."""
_LOOKS = 4
"""How often a stalled call looks at its pace before that ends it."""


@dataclass(slots=True)
class Tally:
    """What all connections of a server moved. Thread-safe."""

    bytes_in: int = 0
    bytes_out: int = 0
    slices_done: int = 0
    slices_failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, bytes_in: int = 0, bytes_out: int = 0, done: int = 0, failed: int = 0) -> None:
        with self._lock:
            self.bytes_in += bytes_in
            self.bytes_out += bytes_out
            self.slices_done += done
            self.slices_failed += failed

    def snapshot(self) -> TransferCounters:
        with self._lock:
            return TransferCounters(
                self.bytes_in, self.bytes_out, self.slices_done, self.slices_failed
            )


class Serving:
    """Serves one authenticated connection until it ends. Allocates a fixed read-ahead buffer;
    payload goes straight between the socket and the segments."""

    def __init__(
        self,
        sock: socket.socket,
        segments: SegmentRegistry,
        tally: Tally,
        *,
        version: int,
        idle_seconds: float,
        stall_seconds: float,
    ) -> None:
        self._sock = sock
        self._segments = segments
        self._tally = tally
        self._bundles = version >= wire.BUNDLES_VERSION
        self._idle_seconds = idle_seconds
        self._pace = Pace(stall_seconds, time.monotonic())
        be_patient(sock, stall_seconds / _LOOKS)
        self._ahead = memoryview(bytearray(READ_AHEAD * HEADER_BYTES))
        self._have = 0  # bytes received ahead
        self._used = 0  # of them
        self._nowhere = Nowhere()

    def run(self) -> None:
        """Returns when the peer closed or was idle too long. Raises Malformed, Unavailable (too
        slow), OSError."""
        while self._fill():
            self._answer()

    def _fill(self) -> bool:
        """At least one whole header ahead; False when the peer is gone or idle."""
        rest = self._have - self._used
        if rest:
            self._ahead[:rest] = self._ahead[self._used : self._have]
        self._have, self._used = rest, 0
        self._pace.restart(time.monotonic())
        while self._have < HEADER_BYTES:
            try:
                received = self._sock.recv_into(self._ahead[self._have :])
            except BlockingIOError:
                if self._have:
                    self._pace.left(time.monotonic())
                elif not self._is_asked_something():
                    return False
                continue
            if not received:
                return False
            self._have += received
        return True

    def _is_asked_something(self) -> bool:
        """Waits for as long as the peer may be idle."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        return bool(poller.poll(self._idle_seconds * 1000))

    def _answer(self) -> None:
        """Every whole request that was received; READs in runs."""
        reads: list[Header] = []
        while self._have - self._used >= HEADER_BYTES:
            header = wire.decode_header(self._ahead[self._used : self._used + HEADER_BYTES])
            self._used += HEADER_BYTES
            if header.kind is Kind.READ:
                reads.append(header)
                continue
            self._send_reads(reads)
            reads = []
            if header.kind is Kind.WRITE:
                self._write([header])
            elif header.kind is Kind.WRITES and self._bundles:
                self._write(self._writes(header))
            else:
                raise Malformed(f"{header.kind.name} is no request")
        self._send_reads(reads)

    def _send_reads(self, reads: Sequence[Header]) -> None:
        if not reads:
            return
        lent: list[Borrowed] = []
        buffers: list[memoryview] = []
        granted: list[Header] = []
        try:
            for read in reads:
                try:
                    lent.append(self._borrow(Opcode.READ, read))
                except Refused as error:
                    buffers += self._data(granted, lent)
                    buffers.append(memoryview(wire.encode_reason(read.request_id, error.reason)))
                    granted = []
                else:
                    granted.append(read)
            buffers += self._data(granted, lent)
            self._send(buffers)
            self._tally.add(
                bytes_out=sum([span.view.nbytes for span in lent]),
                done=len(lent),
                failed=len(reads) - len(lent),
            )
        finally:
            for span in lent:
                span.release()

    def _data(self, reads: Sequence[Header], lent: Sequence[Borrowed]) -> Iterator[memoryview]:
        """Answers to READs whose spans were lent last; small ones share a frame."""
        spans = lent[len(lent) - len(reads) :]
        first = 0
        while first < len(reads):
            end = first + (wire.bundle_length(reads[first:]) if self._bundles else 1)
            yield memoryview(wire.encode_header(wire.success(reads[first:end])))
            yield from [span.view for span in spans[first:end]]
            first = end

    def _writes(self, header: Header) -> list[Header]:
        """What shares that frame."""
        table = memoryview(bytearray(wire.table_bytes(header)))
        self._receive([table])
        return wire.decode_writes(header, table)

    def _write(self, writes: Sequence[Header]) -> None:
        """Those of one frame, whose payloads come now."""
        lent: list[Borrowed] = []
        places: list[memoryview] = []
        refused: dict[int, str] = {}
        try:
            for write in writes:
                try:
                    span = self._borrow(Opcode.WRITE, write)
                except Refused as error:
                    refused[write.request_id] = error.reason
                    places += self._nowhere.views(write.length)
                else:
                    lent.append(span)
                    places.append(span.view)
            self._receive(places)
        finally:
            for span in lent:
                span.release()
        num_bytes = sum([write.length for write in writes if write.request_id not in refused])
        self._tally.add(bytes_in=num_bytes, done=len(lent), failed=len(refused))
        self._send([memoryview(answer) for answer in _answers(writes, refused)])

    def _borrow(self, opcode: Opcode, request: Header) -> Borrowed:
        """Raises Refused."""
        return self._segments.borrow(opcode, request.segment, request.offset, request.length)

    def _receive(self, places: Sequence[memoryview]) -> None:
        """Fills them with what comes next."""
        places = behind(places, self._take_early(places))
        self._pace.restart(time.monotonic())
        while places:
            self._pace.left(time.monotonic())
            try:
                received = receive_all(self._sock, places)
            except BlockingIOError:
                continue  # the pace decides
            if not received:
                raise Unavailable("the peer closed the connection within a write")
            self._pace.moved(received, time.monotonic())
            places = behind(places, received)

    def _take_early(self, places: Sequence[memoryview]) -> int:
        """Bytes that were received ahead and are where they belong now."""
        begun = self._used
        for place in places:
            num_bytes = min(self._have - self._used, place.nbytes)
            place[:num_bytes] = self._ahead[self._used : self._used + num_bytes]
            self._used += num_bytes
        return self._used - begun

    def _send(self, buffers: list[memoryview]) -> None:
        left = sum([buffer.nbytes for buffer in buffers])
        self._pace.restart(time.monotonic())
        while True:
            try:
                sent = self._sock.sendmsg(buffers)
            except BlockingIOError:
                sent = 0
            left -= sent
            if not left:
                return
            now = time.monotonic()
            self._pace.moved(sent, now)
            self._pace.left(now)
            buffers = behind(buffers, sent)


def _answers(writes: Sequence[Header], refused: Mapping[int, str]) -> list[bytes]:
    """One for all of them, or one each."""
    if not refused:
        return [wire.encode_header(wire.success(writes))]
    return [
        wire.encode_reason(write.request_id, refused[write.request_id])
        if write.request_id in refused
        else wire.encode_header(wire.success([write]))
        for write in writes
    ]
