"""One greeted connection to a daemon, used blocking: a request, its reply, before a deadline."""

from __future__ import annotations

import itertools
import math
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from moontide.transfer import TlsEndpoint
from moontide.transfer import errors as transfer_errors
from moontide.transfer.types import Instance, boot_id

from ... import wire
from ...errors import ERRORS_BY_CODE, AccessDenied, StoreError, StoreTimeout, StoreUnavailable
from ..deadline import Deadline
from .address import Address, UnixAddress
from .frames import Buffers, ConnectionLost, Frame, FrameReader, FrameWriter, Place, Stream

LIMIT_SLACK_RATIO = 0.05
"""How much later than its deadline a wait may end: so the kernel need not be told each time."""
_MOST_SLACK = 1 + LIMIT_SLACK_RATIO

_serials = itertools.count(1)
_BRINGS_DESCRIPTOR = (wire.Hello, wire.MapSegment)
_ANNOUNCEMENT = wire.NoteUse(b"", b"")
_TIMEVAL = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this client is to the daemon at `address`."""

    address: Address
    token: str = field(repr=False)
    instance: Instance
    tls: TlsEndpoint | None = None

    @property
    def is_local(self) -> bool:
        return isinstance(self.address, UnixAddress)


def raise_failure(failure: wire.Failure) -> NoReturn:
    """Raises the error that the daemon named."""
    raise ERRORS_BY_CODE.get(failure.code, StoreError)(failure.message)


class ReceiveLimit:
    """Ends a blocking receive at a deadline: then it raises BlockingIOError. The kernel keeps the
    limit, so that a reply takes one call."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.seconds = 0.0
        sock.settimeout(None)

    def hold(self, left: float) -> None:
        """`left` seconds from now."""
        if not left <= self.seconds <= left * _MOST_SLACK:
            self.seconds = left * (1 + LIMIT_SLACK_RATIO / 2)
            seconds, rest = divmod(self.seconds, 1)
            limit = _TIMEVAL.pack(int(seconds), int(rest * 1e6) + 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


class Connection:
    """Owns its socket and the descriptors not yet taken from it. Not thread-safe. After a timeout
    or ConnectionLost only `close` may be called: a late reply would answer the wrong request.
    `on_notice` takes each unasked message; False: it is not known."""

    def __init__(self, sock: socket.socket, *, is_local: bool) -> None:
        self.serial = next(_serials)
        self.sock = sock
        self.reader = FrameReader(sock)
        self.writer = FrameWriter(sock)
        self.welcome: wire.Welcome
        self.on_notice: Callable[[wire.Reply], bool] = _refuse_notice
        self._answers: dict[int, Frame | None] = {}  # of `post`; None until it is here
        self._unheeded: set[int] = set()  # of `tell`
        self._limit = ReceiveLimit(sock)
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(sock, select.POLLOUT)
        self.is_local = is_local  # descriptors may come over it

    def fileno(self) -> int:
        return self.sock.fileno()

    def request(
        self,
        message: wire.Request,
        deadline: Deadline,
        payload: Buffers | Stream = (),
        place: Place | None = None,
    ) -> tuple[wire.Reply, memoryview]:
        """The reply (a Failure too) and its payload, unless `place` took that. Raises StoreTimeout,
        ConnectionLost.

        The common course is one send and one receive, in `_send_at_once` and `_receive_reply`; it
        is left for the general way as soon as the socket takes or gives anything else than one
        whole frame, or something waits to be sent before."""
        self.reader.takes_descriptors = self.is_local and type(message) in _BRINGS_DESCRIPTOR
        if isinstance(payload, Stream):
            request_id = self._send_stream(message, payload, deadline)
        elif payload or self.writer:
            request_id = self.writer.add(message, payload)
            self._send(deadline)
        else:
            request_id = self._send_at_once(message, deadline)
        if place is None:
            return self._receive_answer(request_id, deadline)
        self.reader.expect(request_id, place)
        try:
            return self._receive_answer(request_id, deadline)
        finally:
            self.reader.expect_none()

    def _receive_answer(self, request_id: int, deadline: Deadline) -> tuple[wire.Reply, memoryview]:
        if not self.reader.takes_descriptors and self.reader.is_between_frames:
            answer = self._receive_reply(request_id, deadline)
            if answer is not None:
                return answer
        while (frame := self._receive(deadline)).request_id != request_id:
            self._set_aside(frame)
        return frame.message, frame.payload

    def post(self, message: wire.Request, deadline: Deadline) -> int:
        """Sends a request whose reply `collect` takes later; its id. Raises like `request`."""
        self.reader.takes_descriptors = False
        request_id = self.writer.add(message)
        self._answers[request_id] = None
        self._send(deadline)
        return request_id

    def collect(self, request_id: int, deadline: Deadline) -> wire.Reply:
        """The reply to what was posted. Raises like `request`."""
        if self._answers[request_id] is None and self.reader.is_between_frames:
            answer = self._receive_reply(request_id, deadline)
            if answer is not None:
                del self._answers[request_id]
                return answer[0]
        while (frame := self._answers[request_id]) is None:
            self._set_aside(self._receive(deadline))
        del self._answers[request_id]
        return frame.message

    def forget(self, request_id: int) -> None:
        """Nobody will collect the reply to what was posted, unless that was done."""
        if request_id in self._answers and self._answers.pop(request_id) is None:
            self._unheeded.add(request_id)

    def tell(self, message: wire.Request) -> None:
        """Queues a request whose reply nobody needs; it goes with `flush` or the next request."""
        self._unheeded.add(self.writer.add(message))

    def note(self, message: wire.NoteUse) -> None:
        """Queues a request that has no reply; it goes with `flush` or the next request."""
        self.writer.tell(message)

    def announce(self) -> None:
        """A request follows: the daemon may look for it already. Raises ConnectionLost."""
        if self.reader.wait.may_poll():
            self.writer.tell(_ANNOUNCEMENT)
            self.flush()

    def flush(self) -> None:
        """Sends of what is queued what the socket takes at once. Raises ConnectionLost."""
        try:
            while self.writer:
                self.writer.send(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise _connection_failed(error, sent=False) from error

    def take_notices(self) -> None:
        """Handles what the daemon sent unasked since the last request. Raises ConnectionLost, with
        `sent` False, when the connection has ended meanwhile."""
        while self._readable.poll(0):
            try:
                self.reader.receive()
                while frame := self.reader.next():
                    self._set_aside(frame)
            except ConnectionLost as lost:
                lost.sent = False
                raise

    def _set_aside(self, frame: Frame) -> None:
        """What comes while another reply is awaited, or none."""
        if frame.request_id in self._answers:
            self._answers[frame.request_id] = frame
        elif frame.request_id in self._unheeded:
            self._unheeded.remove(frame.request_id)
        elif frame.request_id or not self.on_notice(frame.message):
            raise ConnectionLost(f"the store answered request {frame.request_id}, never made")

    def _send_at_once(self, message: wire.Request, deadline: Deadline) -> int:
        """Its id. Nothing is queued."""
        request_id, frame = self.writer.frame(message)
        try:
            sent_bytes = self.sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent_bytes = 0
        except OSError as error:
            raise _connection_failed(error, sent=False) from error
        if sent_bytes < len(frame):
            self.writer.queue(frame[sent_bytes:])
            self._send(deadline, sent_bytes)
        return request_id

    def _send_stream(self, message: wire.Request, stream: Stream, deadline: Deadline) -> int:
        """Its id."""
        request_id = self.writer.begin(message, stream.num_bytes)
        sent_bytes = self._send(deadline)
        for parts in stream.begin():
            self.writer.extend(parts)
            sent_bytes = self._send(deadline, sent_bytes)
        return request_id

    def _send(self, deadline: Deadline, sent_bytes: int = 0) -> int:
        """What is queued. `sent_bytes` of the request have been sent already; how many have
        now."""
        try:
            while self.writer:
                try:
                    sent_bytes += self.writer.send(socket.MSG_DONTWAIT)
                except BlockingIOError:
                    left = deadline.check("sending to the store")
                    self._writable.poll(math.ceil(left * 1e3))
        except OSError as error:
            raise _connection_failed(error, sent=sent_bytes > 0) from error
        return sent_bytes

    def _receive_reply(
        self, request_id: int, deadline: Deadline
    ) -> tuple[wire.Reply, memoryview] | None:
        """See FrameReader.receive_reply."""
        left = deadline.at - monotonic()
        try:
            if not left <= self._limit.seconds <= left * _MOST_SLACK:
                self._limit.hold(deadline.check("waiting for the store"))
            return self.reader.receive_reply(request_id)
        except BlockingIOError as error:
            raise _no_answer(deadline) from error

    def _receive(self, deadline: Deadline) -> Frame:
        while (frame := self.reader.next()) is None:
            try:
                self._limit.hold(deadline.check("waiting for the store"))
                self.reader.receive()
            except BlockingIOError as error:
                raise _no_answer(deadline) from error
        return frame

    def greet(self, identity: Identity, deadline: Deadline) -> None:
        """Hello and Welcome. `quiesced` is always true: the caller has waited for its writes."""
        proof = b""
        if not self.is_local:
            frame = self._receive(deadline)
            if isinstance(frame.message, wire.Failure):
                raise_failure(frame.message)
            if not isinstance(frame.message, wire.Challenge):
                raise StoreUnavailable(f"{identity.address} does not answer like a store")
            proof = wire.prove(identity.token.encode(), frame.message.nonce, str(identity.instance))
        hello = wire.Hello(
            oldest_version=wire.OLDEST_VERSION,
            newest_version=wire.WIRE_VERSION,
            client=str(identity.instance),
            boot_id=boot_id(),
            quiesced=True,
            proof=proof,
        )
        welcome, _ = self.request(hello, deadline)
        if isinstance(welcome, wire.Failure):
            raise_failure(welcome)
        if not isinstance(welcome, wire.Welcome):
            raise StoreUnavailable(f"{identity.address} does not answer like a store")
        if not wire.OLDEST_VERSION <= welcome.version <= wire.WIRE_VERSION:
            raise StoreUnavailable(f"{identity.address} chose wire version {welcome.version}")
        self.welcome = welcome
        self.writer.version = welcome.version
        if identity.tls is None:  # else this process's own threads have to open the reply first
            self.reader.wait.poll(welcome.poll_seconds)

    def close(self) -> None:
        """Idempotent."""
        self.reader.close()
        self.sock.close()


def _connection_failed(error: OSError, *, sent: bool) -> ConnectionLost:
    return ConnectionLost(f"connection to the store failed: {error}", sent=sent)


def _no_answer(deadline: Deadline) -> StoreTimeout:
    return StoreTimeout(f"the store did not answer within {deadline.timeout_s:g} s")


def _refuse_notice(message: wire.Reply) -> bool:
    return False


def open_connection(identity: Identity, deadline: Deadline) -> Connection:
    """Raises StoreUnavailable (nobody there, or not a store), AccessDenied, InvalidRequest (no
    common version), StoreTimeout."""
    connection = Connection(_open_socket(identity, deadline), is_local=identity.is_local)
    try:
        connection.greet(identity, deadline)
    except ConnectionLost as lost:
        connection.close()
        raise StoreUnavailable(f"{identity.address} closed the connection: {lost}") from lost
    except BaseException:
        connection.close()
        raise
    return connection


def _open_socket(identity: Identity, deadline: Deadline) -> socket.socket:
    """Raises StoreUnavailable, AccessDenied, StoreTimeout."""
    try:
        sock = identity.address.open(deadline.check("connecting to the store"))
    except OSError as error:
        raise StoreUnavailable(f"no store at {identity.address}: {error}") from error
    if identity.tls is None:
        return sock
    try:
        return identity.tls.dial(
            sock, peer=f"the store at {identity.address}", deadline=deadline.at
        )
    except transfer_errors.AccessDenied as error:
        raise AccessDenied(str(error)) from error
    except transfer_errors.Unavailable as error:
        raise StoreUnavailable(str(error)) from error
