"""Frames on a patient socket (patience.py), their payload straight from and to where it belongs."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import wire
from ..errors import Unavailable
from ..wire import HEADER_BYTES, Header

_SCRATCH_BYTES = 64 << 10
_LARGE_BYTES = 64 << 10
"""So much of a payload is received in one call that waits for all of it."""
_MAX_BUFFERS = 128
"""Of one sendmsg."""


class Nowhere:
    """Where bytes go that nobody wants: memory that is used over and over."""

    def __init__(self) -> None:
        self._scratch = memoryview(b"")

    def views(self, num_bytes: int) -> list[memoryview]:
        """So many bytes in all."""
        if not self._scratch.nbytes:
            self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        whole, rest = divmod(num_bytes, _SCRATCH_BYTES)
        return [self._scratch] * whole + ([self._scratch[:rest]] if rest else [])


class FrameReader:
    """`place(header)` says where a payload goes, in views that are exactly as long together;
    `complete(header)` follows when all of it is there. The next header is received with the end of
    a small payload in one call."""

    def __init__(
        self,
        place: Callable[[Header], list[memoryview]],
        complete: Callable[[Header], None],
        nowhere: Nowhere,
    ) -> None:
        self._place = place
        self._complete = complete
        self._head = memoryview(bytearray(HEADER_BYTES))
        self._have = 0  # bytes of the next header
        self._current: Header | None = None
        self._rest: list[memoryview] = []  # of the current payload's places
        self._due = 0  # bytes of them
        self._nowhere = nowhere

    @property
    def current(self) -> Header | None:
        """The frame whose payload is under way."""
        return self._current

    def divert(self, span: range) -> None:
        """What is missing of these bytes of the current payload, one or more places, is thrown
        away: the places are let go."""
        assert self._current is not None
        at, rest = self._current.length - self._due, self._rest
        self._rest = []
        for view in rest:
            self._rest += self._nowhere.views(view.nbytes) if at in span else [view]
            at += view.nbytes

    def step(self, sock: socket.socket, flags: int) -> int:
        """One receive of a header, with these flags, and one that waits for its payload; bytes
        that came. Raises BlockingIOError, OSError, Unavailable (closed), Malformed."""
        head_bytes = 0
        if not self._due:
            head_bytes = _some(sock.recv_into(self._head[self._have :], 0, flags))
            self._have += head_bytes
            self._advance()
        return head_bytes + self._step_payload(sock) if self._due else head_bytes

    def _step_payload(self, sock: socket.socket) -> int:
        if self._due >= _LARGE_BYTES:
            received = _some(receive_all(sock, self._rest))
            self._placed(received)
        else:
            received = _some(sock.recvmsg_into([*self._rest, self._head])[0])
            self._have = max(received - self._due, 0)
            self._placed(received - self._have)
        self._advance()
        return received

    def _placed(self, num_bytes: int) -> None:
        self._due -= num_bytes
        self._rest = behind(self._rest, num_bytes) if self._due else []

    def _advance(self) -> None:
        """Frames that are complete, and the next one's place."""
        self._end_frame()
        if self._have < HEADER_BYTES:
            return
        self._have = 0
        header = wire.decode_header(self._head)
        self._current = header
        self._rest = self._place(header)
        self._due = sum([view.nbytes for view in self._rest])
        self._end_frame()

    def _end_frame(self) -> None:
        if self._current is not None and not self._due:
            ended, self._current = self._current, None
            self._complete(ended)


_Request = tuple[Header, memoryview | None]
"""And its payload."""


@dataclass(slots=True, eq=False)
class _Frame:
    """What is left to send of one, or of several that have no payload; `requests` are its own."""

    requests: Sequence[_Request]
    buffers: list[memoryview]
    num_bytes: int


class FrameWriter:
    """Requests on their way out, in order. A payload is touched until all of it was taken."""

    def __init__(self) -> None:
        self._queue: deque[_Request] = deque()  # of which nothing was sent
        self._started: _Frame | None = None
        self.bundles = False
        """Whether the peer knows them."""
        self.num_waiting = 0
        """Requests not wholly sent."""

    def add(self, header: Header, payload: memoryview | None) -> None:
        self._queue.append((header, payload))
        self.num_waiting += 1

    def flush(self, sock: socket.socket, flags: int) -> int:
        """Sends what the socket takes, with these flags of sendmsg; how many bytes that was.
        Raises OSError."""
        total = 0
        while self.num_waiting:
            frames = self._next_frames()
            buffers = [buffer for frame in frames for buffer in frame.buffers]
            try:
                sent = sock.sendmsg(buffers, [], flags)
            except BlockingIOError:
                break
            total += sent
            self._drop(frames, sent)
            if self._started is not None:
                break
        return total

    def waiting(self) -> dict[int, bool]:
        """Ids of requests not wholly sent; whether some of it was."""
        started = self._started.requests if self._started is not None else ()
        waiting = {header.request_id: True for header, _ in started}
        return waiting | {header.request_id: False for header, _ in self._queue}

    def withdraw(self, request_id: int) -> None:
        """Of a request of which nothing was sent."""
        self._queue = deque(item for item in self._queue if item[0].request_id != request_id)
        self.num_waiting -= 1

    def _next_frames(self) -> list[_Frame]:
        """For one sendmsg; what has not started stays in the queue until it has."""
        frames = [] if self._started is None else [self._started]
        num_buffers, first = len(frames), 0
        requests = [*self._queue]
        while first < len(requests) and num_buffers < _MAX_BUFFERS:
            frame = _frame(requests[first : first + self._num_sharing(requests, first)])
            frames.append(frame)
            num_buffers += len(frame.buffers)
            first += len(frame.requests)
        return frames

    def _num_sharing(self, requests: Sequence[_Request], first: int) -> int:
        """How many can be sent as one from there on."""
        if requests[first][1] is not None:
            headers = [header for header, _ in requests[first:]]
            return wire.bundle_length(headers) if self.bundles else 1
        end = first
        while end < len(requests) and requests[end][1] is None:
            end += 1
        return end - first

    def _drop(self, frames: Sequence[_Frame], num_bytes: int) -> None:
        for frame in frames:
            if not num_bytes:
                return
            if frame is not self._started:
                for _ in frame.requests:
                    self._queue.popleft()
            self._started = None
            if num_bytes < frame.num_bytes:
                frame.buffers = behind(frame.buffers, num_bytes)
                frame.num_bytes -= num_bytes
                self._started = frame
                return
            num_bytes -= frame.num_bytes
            self.num_waiting -= len(frame.requests)


def _frame(requests: Sequence[_Request]) -> _Frame:
    headers = [header for header, _ in requests]
    payloads = [payload for _, payload in requests if payload is not None]
    if payloads and len(headers) > 1:
        head = wire.encode_writes(headers)
    else:
        head = b"".join([wire.encode_header(header) for header in headers])
    num_bytes = len(head) + sum([payload.nbytes for payload in payloads])
    return _Frame(requests, [memoryview(head), *payloads], num_bytes)


def receive_all(sock: socket.socket, views: Sequence[memoryview]) -> int:
    """One receive that waits until they are full, or for as long as the socket is patient; bytes
    that came."""
    if len(views) == 1:
        return sock.recv_into(views[0], 0, socket.MSG_WAITALL)
    return sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]


def behind(buffers: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of them after so many bytes."""
    for index, buffer in enumerate(buffers):
        if num_bytes < buffer.nbytes:
            return [buffer[num_bytes:], *buffers[index + 1 :]]
        num_bytes -= buffer.nbytes
    return []


def _some(received: int) -> int:
    """Raises Unavailable."""
    if not received:
        raise Unavailable("the peer closed the connection")
    return received
