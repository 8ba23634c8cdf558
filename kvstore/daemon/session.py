"""One connection: socket in, frames, answers, socket out. Never blocks, never awaits.

  GREETING ──Hello ok──► SERVING ──eof, malformed bytes, stall, client's end──► CLOSED
      └──Hello refused: Failure is sent, then──► CLOSING ──sent──► CLOSED

Bounds: a turn takes TURN_SECONDS of the loop before others get theirs (turns.py); a client that
does not read its replies is not read from beyond OUTPUT_HIGH bytes or MAX_REPLY_ITEMS; what is
received and not yet used is at most one frame head (and before the greeting GREETING_BODY_BYTES);
waits are counted. All connections share a budget of memory: a request that would exceed it is
answered Busy, and one whose replies lie unread is not read from while it is full. Whatever the
connection held ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import Callable
from functools import partial

from .. import wire
from ..errors import AccessDenied, Busy, InvalidRequest, StoreError
from .answers import Answer, Deferred, Incoming, Outgoing, Silence
from .budget import Budget
from .buffers import ReceiveBuffer, drain
from .counters import CloseReason, Counters
from .gate import Gate, Visitor
from .outbox import Outbox
from .peer import Peer
from .requests import answer
from .turns import Turns
from .vigil import Vigil
from .waits import Waits

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.001
OUTPUT_HIGH = 4 << 20
MAX_REPLY_ITEMS = 16384
LEAST_PROGRESS_BYTES = 64 << 10
"""What has to move within the stall limit while a frame or a reply is under way."""
GREETING_BODY_BYTES = 4096
LEAST_ANNOUNCED_BYTES = 1 << 20
"""Who has reserved so much copies first, with a second thread if a core is free."""
DECODED_RATIO = 16
"""What a request takes in memory for each byte of its body, at most: a list of short keys."""


class Session:
    """Owns its socket. `on_close` is called exactly once, after everything it held is given up."""

    def __init__(
        self,
        sock: socket.socket,
        visitor: Visitor,
        *,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        vigil: Vigil,
        gate: Gate,
        memory: Budget,
        counters: Counters,
        on_close: Callable[[Session], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._visitor = visitor
        self._loop = loop
        self._turns = turns
        self._vigil = vigil
        self._gate = gate
        self._memory = memory
        self._counters = counters
        self._on_close = on_close
        self._peer: Peer | None = None
        self._version = wire.OLDEST_VERSION  # until a greeting has agreed on another
        self._input = ReceiveBuffer(memory)
        self._output = Outbox(memory)
        self._incoming: tuple[wire.FrameHeader, Incoming] | None = None  # payload under way
        self._served_bytes = 0  # of `memory`, for the request being served
        self._sent_next: list[Callable[[], None]] = []  # to be called once the replies have left
        self._waits = Waits(loop, memory)
        self._reading = self._writing = False
        self._turn_due = self._flush_due = self._write_due = False
        self._closing: CloseReason | None = None  # close with this reason once the output is sent
        self._closed = False
        self._progress = self._opened = time.monotonic()
        self._moved_bytes = 0  # since then
        self._served_at = 0.0
        self._last_request: wire.Request | None = None

    def start(self) -> None:
        if self._visitor.nonce is not None:
            self._reply(0, wire.Challenge(self._visitor.nonce))
        self._watch_input()

    @property
    def greeted(self) -> bool:
        return self._peer is not None

    def stalled_since(self) -> float | None:
        """When a connection that has bytes under way last got on; None while it is just idle. One
        that never said Hello counts from its opening."""
        if self._peer is None:
            return self._opened
        return self._progress if self._is_under_way() else None

    def _is_under_way(self) -> bool:
        return self._incoming is not None or bool(self._output) or len(self._input) > 0

    def _moved(self, num_bytes: int) -> None:
        """A trickle is no progress: it would hold a reservation for ever."""
        self._moved_bytes += num_bytes
        if self._moved_bytes >= LEAST_PROGRESS_BYTES:
            self._got_on()

    def _got_on(self) -> None:
        self._progress = time.monotonic()
        self._moved_bytes = 0

    def close(self, reason: CloseReason) -> None:
        if self._closed:
            return
        self._closed = True
        self._read_off()
        self._write_off()
        self._waits.drop()
        self._incoming = None
        self._served()
        self._input.drop()
        self._output.drop()
        self._release_sent()
        if self._peer is not None:
            self._gate.leave(self._peer)
        self._sock.close()
        self._counters.closed[reason] += 1
        self._on_close(self)

    def end(self) -> None:
        self.close("exited")

    def revoke_segment(self, segment: int) -> None:
        self._reply(0, wire.RevokeSegment(segment))

    # -- input ------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._turns.take(self._read_turn)

    def _read_turn(self) -> None:
        self._turn_due = False
        self._guard(self._take_turn)

    def _guard(self, step: Callable[[], None]) -> None:
        """A request boundary: whatever goes wrong ends this connection, no other."""
        if self._closed:
            return
        try:
            step()
        except InvalidRequest as error:
            logger.debug("malformed bytes peer=%s error=%s", self, error)
            self.close("malformed")
        except OSError:
            self.close("closed")
        except Exception:  # the boundary of one connection
            logger.exception("request failed peer=%s", self)
            self._counters.internal_errors += 1
            self.close("error")

    def _take_turn(self) -> None:
        begin = time.monotonic()
        end = begin + TURN_SECONDS
        self._flush_due = True  # below, for all replies of this turn
        if self._peer is None or self._is_under_way() or not self._serve_quickly(end):
            self._take_full_turn(end)
        self._flush_due = False
        self._look_for_the_next(begin)

    def _look_for_the_next(self, begin: float) -> None:
        """The turn that began then is over."""
        last = self._last_request
        if isinstance(last, wire.NoteUse) and last.is_announcement:
            self._vigil.served(0.0)
        elif isinstance(last, wire.Reserve) and sum(last.sizes) >= LEAST_ANNOUNCED_BYTES:
            self._served_at = self._vigil.served(math.inf)
        else:
            self._served_at = self._vigil.served(begin - self._served_at)

    def _serve_quickly(self, end: float) -> bool:
        """The common case, without queues and their accounts, which would cost more than the
        request: nothing is under way, whole small requests come with one receive, are answered at
        once, and their replies leave with one send. False: anything else; a full turn goes on with
        what was received and what is queued."""
        room = self._input.room()
        try:
            received = self._sock.recv_into(room)
        except BlockingIOError:
            return True
        if not received:
            self.close("closed")
            return True
        replies: list[bytes] = []
        used = 0
        while used < received and (request := wire.whole_request(room[used:received])):
            header, message = request
            used += wire.HEADER.size + header.body_bytes
            self._counters.requests[type(message).__name__] += 1
            what = self._answer(header, message)
            if isinstance(what, Outgoing) and what.release and what.is_plain:
                self._sent_next.append(what.release)
                what = what.reply
            if isinstance(what, wire.Message):
                replies.append(wire.encode_frame(what, header.request_id, version=self._version))
            elif not isinstance(what, Silence):
                self._send_at_once(replies)
                replies = []
                self._act(header, what)
                break
            if used < received and time.monotonic() > end:
                break
        self._send_at_once(replies)
        if used < received:
            self._got_on()
            self._input.filled(received)
            self._input.consume(used)
        return not self._is_under_way()

    def _send_at_once(self, replies: list[bytes]) -> None:
        """Queues what the socket does not take."""
        data = replies[0] if len(replies) == 1 else b"".join(replies)
        sent = 0
        if data and not self._output:
            with contextlib.suppress(BlockingIOError):
                sent = self._sock.send(data)
        if sent < len(data):
            self._got_on()
            self._output.put(data[sent:])
        if self._sent_next:
            self._release_sent()

    def _release_sent(self) -> None:
        released, self._sent_next = self._sent_next, []
        for release in released:
            release()

    def _take_full_turn(self, end: float) -> None:
        more = True  # the socket may hold more
        while self._may_read():
            if not self._advance_input():
                if not more:
                    break
                more = self._receive()
            if time.monotonic() > end:
                self._continue_soon()
                break
        if not self._closed:
            self._send_turn()

    def _may_read(self) -> bool:
        return (
            not self._closed and self._closing is None and (not self._output or self._may_reply())
        )

    def _may_reply(self) -> bool:
        return (
            self._output.num_bytes < OUTPUT_HIGH
            and self._output.num_items < MAX_REPLY_ITEMS
            and not self._memory.is_full
        )

    def _continue_soon(self) -> None:
        """Another turn after everyone else's: the socket does not report bytes already taken."""
        if not self._turn_due:
            self._turn_due = True
            self._turns.wait(self._read_turn)

    def _advance_input(self) -> bool:
        """Uses what was received: true while that makes progress without the socket."""
        if self._incoming is not None:
            header, incoming = self._incoming
            incoming.sink.take(self._input)
            if incoming.sink.remaining:
                return False
            self._incoming = None
            self._finish(header, incoming)
            return True
        received = len(self._input)
        if received < wire.HEADER.size:
            return False
        header = wire.decode_header(self._input.peek(wire.HEADER.size))
        self._check(header)
        head_bytes = wire.HEADER.size + header.body_bytes
        if received < head_bytes:
            return False
        message = wire.decode_request(self._input.peek(header.body_bytes, wire.HEADER.size))
        self._input.consume(head_bytes)
        self._serve(header, message)
        return True

    def _receive(self) -> bool:
        """Reads once from the socket; false when it surely has no more."""
        sink = self._incoming[1].sink if self._incoming else None
        try:
            target = sink.target() if sink else self._input.room()
        except Busy as error:
            self._refuse_frame(error)
            return True
        try:
            received = self._sock.recv_into(target)
        except BlockingIOError:
            return False
        if not received:
            self.close("closed")
            return False
        if self._is_under_way():
            self._moved(received)
        else:
            self._got_on()
        if sink:
            sink.filled(received)
        else:
            self._input.filled(received)
        return received == len(target)

    def _check(self, header: wire.FrameHeader) -> None:
        if self._peer is None:
            if header.body_bytes > GREETING_BODY_BYTES or header.payload_bytes:
                raise InvalidRequest(
                    f"first frame of {header.body_bytes} + {header.payload_bytes} bytes; "
                    f"a Hello has at most {GREETING_BODY_BYTES} and no payload"
                )
        elif not wire.OLDEST_VERSION <= header.version <= wire.WIRE_VERSION:
            raise InvalidRequest(f"frame of version {header.version} after a greeting")

    # -- requests ---------------------------------------------------------------------

    def _serve(self, header: wire.FrameHeader, message: wire.Request) -> None:
        self._got_on()
        self._counters.requests[type(message).__name__] += 1
        if self._peer is None:
            self._greet(header.request_id, message)
            return
        self._act(header, self._answer(header, message))
        if self._incoming is None:
            self._served()

    def _answer(self, header: wire.FrameHeader, message: wire.Request) -> Answer:
        """Of a greeted peer. A refused request's payload is thrown away."""
        assert self._peer is not None
        self._last_request = message
        try:
            if header.body_bytes > wire.SMALL_BODY_BYTES:
                self._memory.take(DECODED_RATIO * header.body_bytes)
                self._served_bytes = DECODED_RATIO * header.body_bytes
            return answer(self._peer, message, header.payload_bytes)
        except StoreError as error:
            failure = self._failure(error)
            told = Silence() if isinstance(message, wire.NoteUse) else failure
            if not header.payload_bytes:
                return told
            return Incoming(drain(header.payload_bytes), lambda: told)

    def _served(self) -> None:
        self._memory.give_back(self._served_bytes)
        self._served_bytes = 0

    def _finish(self, header: wire.FrameHeader, incoming: Incoming) -> None:
        try:
            self._act(header, incoming.finish())
        except StoreError as error:
            self._reply(header.request_id, self._failure(error))
        self._served()

    def _refuse_frame(self, error: Busy) -> None:
        """The rest of a frame there is no memory for is received and thrown away."""
        header = wire.decode_header(self._input.peek(wire.HEADER.size))
        left = wire.HEADER.size + header.body_bytes + header.payload_bytes - len(self._input)
        self._input.drop()
        failure = self._failure(error)
        self._act(header, Incoming(drain(left), lambda: failure))

    def _greet(self, request_id: int, message: wire.Request) -> None:
        if not isinstance(message, wire.Hello):
            raise InvalidRequest(f"{type(message).__name__} before Hello")
        try:
            self._peer, welcome = self._gate.admit(message, self._visitor, self)
        except StoreError as error:
            self._reply(request_id, self._failure(error))
            self._closing = "denied" if isinstance(error, AccessDenied) else "closed"
        else:
            self._version = self._peer.version
            self._reply(request_id, welcome)

    def _act(self, header: wire.FrameHeader, what: Answer) -> None:
        if isinstance(what, Incoming):
            self._incoming = (header, what)
        elif isinstance(what, Deferred):
            respond = partial(self._reply_late, header.request_id)
            try:
                self._waits.add(what, DECODED_RATIO * header.body_bytes, respond)
            except StoreError as error:
                self._reply(header.request_id, self._failure(error))
        elif not isinstance(what, Silence):
            self._reply(header.request_id, what)

    def _reply_late(self, request_id: int, reply: wire.Reply | Outgoing) -> None:
        if isinstance(reply, wire.Failure):
            self._counters.failures[reply.code] += 1
        self._reply(request_id, reply)

    def _failure(self, error: StoreError) -> wire.Failure:
        self._counters.failures[error.code] += 1
        return wire.Failure(error.code, str(error))

    # -- output -----------------------------------------------------------------------

    def _reply(self, request_id: int, reply: wire.Reply | Outgoing) -> None:
        if not self._is_under_way():
            self._got_on()
        if isinstance(reply, Outgoing):
            payload_bytes = sum(map(len, reply.payload))
            self._output.put(
                wire.encode_frame(reply.reply, request_id, payload_bytes, version=self._version),
                reply.payload,
                descriptors=reply.descriptors,
                on_sent=reply.release,
            )
        else:
            self._output.put(wire.encode_frame(reply, request_id, version=self._version))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._on_writable)

    def _on_writable(self) -> None:
        if not self._write_due:
            self._write_due = True
            self._turns.take(self._write_turn)

    def _write_turn(self) -> None:
        self._flush_due = self._write_due = False
        self._guard(self._send_turn)

    def _send_turn(self) -> None:
        self._flush()
        if not self._closed:
            self._watch_input()

    def _flush(self) -> None:
        """Sends what the socket takes within a turn; the rest when it is writable again."""
        end = time.monotonic() + TURN_SECONDS
        try:
            while self._output and time.monotonic() < end:
                self._moved(self._output.send(self._sock))
        except BlockingIOError:
            pass
        if self._output:
            self._write_on()
        else:
            self._write_off()
            if self._closing is not None:
                self.close(self._closing)

    # -- the loop's interest in the socket -----------------------------------------------

    def _watch_input(self) -> None:
        """A client that does not read its replies is not read from."""
        if not self._may_read():
            self._read_off()
            return
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
            self._vigil.watch(self._sock.fileno(), self._on_readable)
            if len(self._input):
                self._continue_soon()

    def _read_off(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())
            self._vigil.unwatch(self._sock.fileno())

    def _write_on(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._sock.fileno(), self._on_writable)

    def _write_off(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._sock.fileno())

    def __str__(self) -> str:
        return str(self._peer.client) if self._peer else f"pid {self._visitor.pid}"
