"""One peer's connection at the server: requests in, segment memory out and in."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import wire
from ..errors import Malformed, Refused, Unavailable
from ..registry import Borrowed, SegmentRegistry
from ..types import Opcode, TransferCounters
from ..wire import HEADER_BYTES, Header, Kind
from .pace import Pace
from .patience import be_patient

READ_AHEAD = 64
"""Requests received at once, and answered with one sendmsg."""
_SCRATCH_BYTES = 64 << 10
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
        idle_seconds: float,
        stall_seconds: float,
    ) -> None:
        self._sock = sock
        self._segments = segments
        self._tally = tally
        self._idle_seconds = idle_seconds
        self._pace = Pace(stall_seconds, time.monotonic())
        be_patient(sock, stall_seconds / _LOOKS)
        self._ahead = memoryview(bytearray(READ_AHEAD * HEADER_BYTES))
        self._have = 0  # bytes received ahead
        self._used = 0  # of them

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
            elif header.kind is Kind.WRITE:
                self._send_reads(reads)
                reads = []
                self._write(header)
            else:
                raise Malformed(f"{header.kind.name} is no request")
        self._send_reads(reads)

    def _send_reads(self, reads: Sequence[Header]) -> None:
        if not reads:
            return
        lent: list[Borrowed] = []
        buffers: list[memoryview] = []
        failed = 0
        try:
            for read in reads:
                try:
                    span = self._segments.borrow(
                        Opcode.READ, read.segment, read.offset, read.length
                    )
                except Refused as error:
                    buffers.append(memoryview(wire.encode_reason(read.request_id, error.reason)))
                    failed += 1
                    continue
                lent.append(span)
                head = Header(Kind.DATA, request_id=read.request_id, length=read.length)
                buffers += (memoryview(wire.encode_header(head)), span.view)
            self._send(buffers)
            self._tally.add(
                bytes_out=sum([span.view.nbytes for span in lent]), done=len(lent), failed=failed
            )
        finally:
            for span in lent:
                span.release()

    def _write(self, header: Header) -> None:
        try:
            span = self._segments.borrow(Opcode.WRITE, header.segment, header.offset, header.length)
        except Refused as error:
            self._skip(header.length)
            self._tally.add(failed=1)
            self._send([memoryview(wire.encode_reason(header.request_id, error.reason))])
            return
        try:
            self._receive(span.view)
        finally:
            span.release()
        self._tally.add(bytes_in=header.length, done=1)
        done = wire.encode_header(Header(Kind.DONE, request_id=header.request_id))
        self._send([memoryview(done)])

    def _skip(self, num_bytes: int) -> None:
        scratch = memoryview(bytearray(min(num_bytes, _SCRATCH_BYTES)))
        while num_bytes:
            piece = scratch[: min(num_bytes, len(scratch))]
            self._receive(piece)
            num_bytes -= len(piece)

    def _receive(self, target: memoryview) -> None:
        """Fills `target` with what comes next."""
        early = min(self._have - self._used, target.nbytes)
        target[:early] = self._ahead[self._used : self._used + early]
        self._used += early
        target = target[early:]
        self._pace.restart(time.monotonic())
        while target.nbytes:
            self._pace.left(time.monotonic())
            try:
                received = self._sock.recv_into(target, 0, socket.MSG_WAITALL)
            except BlockingIOError:
                continue  # the pace decides
            if not received:
                raise Unavailable("the peer closed the connection within a write")
            self._pace.moved(received, time.monotonic())
            target = target[received:]

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
            buffers = _behind(buffers, sent)


def _behind(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of them after so many bytes."""
    for index, buffer in enumerate(buffers):
        if num_bytes < buffer.nbytes:
            return [buffer[num_bytes:], *buffers[index + 1 :]]
        num_bytes -= buffer.nbytes
    return []
