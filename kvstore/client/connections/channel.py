"""The background connection of a client: pipelined requests, answered on one thread.

All state of jobs lives on that thread ("io"); other threads only `post` work to it. It never blocks
except in its selector: connecting is done by a short-lived thread of its own.
"""

from __future__ import annotations

import logging
import math
import os
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from moontide.transfer.errors import TransferError

from ... import wire
from ...errors import ForkedClient, InvalidRequest, StoreError
from ..counters import ClientCounters
from ..deadline import MAX_TIMEOUT_SECONDS, Deadline
from .attachment import Attachment, SegmentTaken
from .connection import Connection
from .copier import Copier
from .dialer import Dialer
from .frames import Buffers, ConnectionLost, Frame
from .timers import Timer, Timers
from .writes import RunningWrites

logger = logging.getLogger(__name__)

REDIAL_SECONDS = 1.0
"""After a refusal."""
LEAST_LIFE_SECONDS = 1.0
PAUSE_SECONDS = 0.1
"""After a connection that did not live that long: whatever ended it may end the next as well."""
RETELL_SECONDS = 0.5
SILENCE_SECONDS = 1.0


class ChannelReply(NamedTuple):
    """`message` is None when the connection ended first."""

    message: wire.Reply | None
    payload: memoryview = memoryview(b"")


OnReply = Callable[[ChannelReply], None]


class _Pending(NamedTuple):
    on_reply: OnReply
    due: float  # when the daemon should have answered


class Listener(Protocol):
    """Told, on the io thread, when the channel has a daemon and when it has lost it."""

    def attached(self) -> None: ...
    def detached(self) -> None: ...


class Channel:
    """`post`, `check_usable`, `release_segment` and `close` may be called by any thread, the rest
    by the io thread only."""

    def __init__(
        self,
        dialer: Dialer,
        writes: RunningWrites,
        counters: ClientCounters,
        *,
        on_notice: Callable[[Attachment, wire.Reply], bool],
        tend: Callable[[], float],
    ) -> None:
        """`tend` is called on the io thread from time to time; it returns in how many seconds
        again."""
        self.writes = writes
        self.counters = counters
        self.copier = Copier()
        self.attachment: Attachment | None = None
        self._dialer = dialer
        self._on_notice = on_notice
        self._tend = tend
        self._connection: Connection | None = None
        self._pending: dict[int, _Pending] = {}
        self._mapping: dict[tuple[int, bool], list[Callable[[bool], None]]] = {}
        self._adopted = self._heard = 0.0
        self._listeners: list[Listener] = []
        self._timers = Timers()
        self._inbox: deque[Callable[[], None]] = deque()
        self._closed = self._forked = False
        self._sending = False  # the socket took no more
        self._wake_lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="moontide-io", daemon=True)
        self._timers.call_at(0.0, self._tend_again)
        self._dial()
        self._thread.start()

    # -- any thread -------------------------------------------------------------------

    def post(self, act: Callable[[], None]) -> None:
        """Runs `act` on the io thread, soon and in order."""
        self._inbox.append(act)
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def post_quietly(self, act: Callable[[], None]) -> None:
        """As `post`, when the io thread wakes next. Takes no lock: a finaliser may call it."""
        self._inbox.append(act)

    @property
    def is_forked(self) -> bool:
        return self._forked

    def check_usable(self) -> None:
        if self._forked:
            raise ForkedClient("this client was made before a fork; connect again in the child")
        if self._closed:
            raise InvalidRequest("this client is closed; connect again")

    def release_segment(self, attachment: Attachment, segment: int) -> None:
        """Tells the daemon that a revoked segment is unmapped."""
        self.post(lambda: self._release_segment(attachment, segment))

    def close(self) -> None:
        """Ends every job and both threads. Idempotent."""
        if self._closed or self._forked:
            return
        self.post(self._stop)
        self._thread.join()
        self.copier.close()
        self._run_inbox()  # what the last copies had to say
        self._selector.close()
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1

    def after_fork(self) -> None:
        """In the child: gives up the descriptors, which stay the parent's."""
        self._forked = True
        self._selector.close()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        if self._connection is not None:
            self._connection.close()

    # -- io thread --------------------------------------------------------------------

    @property
    def connection(self) -> int:
        """Serial of the live connection; 0 without one."""
        return self._connection.serial if self._connection else 0

    def add_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)
        if self.attachment is not None:
            listener.attached()

    def remove_listener(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def call_at(self, at: float, act: Callable[[], None]) -> Timer:
        return self._timers.call_at(at, act)

    def request(self, message: wire.Request, on_reply: OnReply, payload: Buffers = ()) -> None:
        """`on_reply` is called exactly once, never from within. The payload must stay unchanged
        until then."""
        if self._connection is None:
            self.post(lambda: on_reply(ChannelReply(None)))
            return
        request_id = self._connection.writer.add(message, payload)
        self._pending[request_id] = _Pending(on_reply, time.monotonic() + _patience(message))
        if not self._sending:
            self._send()

    def map_segment(self, segment: int, *, writable: bool, then: Callable[[bool], None]) -> None:
        """Maps a segment into the current attachment and calls `then(success)`."""
        waiting = self._mapping.setdefault((segment, writable), [])
        waiting.append(then)
        if len(waiting) == 1:
            message = wire.MapSegment(segment, writable)
            self.request(message, lambda reply: self._mapped(segment, writable, reply))

    def _mapped(self, segment: int, writable: bool, reply: ChannelReply) -> None:
        message, success = reply.message, False
        if isinstance(message, wire.SegmentReply) and self._connection and self.attachment:
            add = self.attachment.add_granted if writable else self.attachment.add_readable
            try:
                add(segment, self._connection.reader.take_descriptor(), message.num_bytes)
                success = True
            except (TransferError, ConnectionLost, SegmentTaken):
                logger.warning("segment not mapped segment=%d", segment, exc_info=True)
        for then in self._mapping.pop((segment, writable), []):
            then(success)

    def _release_segment(self, attachment: Attachment, segment: int) -> None:
        """Until it works: the daemon waits for it."""

        def told(reply: ChannelReply) -> None:
            if reply.message is not None:
                attachment.released(segment)
            elif not attachment.retired and not self._closed:
                again = time.monotonic() + RETELL_SECONDS
                self.call_at(again, lambda: self._release_segment(attachment, segment))

        if self._connection is None or attachment is self.attachment:
            self.request(wire.ReleaseSegment(segment), told)

    # -- the loop ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            due = self._timers.next_at()
            timeout = None if due is None else max(due - time.monotonic(), 0.0)
            for key, mask in self._selector.select(timeout):
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                elif self._connection is not None:
                    self._on_socket(mask)
            self._run_inbox()
            self._timers.run_due(time.monotonic())

    def _run_inbox(self) -> None:
        while True:
            try:
                act = self._inbox.popleft()
            except IndexError:
                return
            try:
                act()
            except Exception:  # the boundary of one posted act
                logger.exception("client action failed")

    def _on_socket(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._send()
        if mask & selectors.EVENT_READ and self._connection is not None:
            self._receive(self._connection)

    def _receive(self, connection: Connection) -> None:
        try:
            connection.reader.receive()
            self._heard = time.monotonic()
            while self._connection is connection and (frame := connection.reader.next()):
                self._dispatch(frame)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionLost as lost:
            self._lose(str(lost))
        except Exception:  # the boundary of one received batch
            logger.exception("reply not understood")
            self._lose("a reply could not be used")

    def _dispatch(self, frame: Frame) -> None:
        pending = self._pending.pop(frame.request_id, None)
        if pending is not None:
            pending.on_reply(ChannelReply(frame.message, frame.payload))
        elif frame.request_id or not self.attachment:
            raise ConnectionLost(f"the store answered request {frame.request_id}, never made")
        elif not self._on_notice(self.attachment, frame.message):
            raise ConnectionLost(f"the store sent {type(frame.message).__name__} unasked")

    def _send(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            while connection.writer:
                connection.writer.send()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            reason = f"connection to the store failed: {error}"
            self.post(lambda: self._lose(reason))
            return
        if self._sending != bool(connection.writer):
            self._sending = bool(connection.writer)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._sending else 0)
            self._selector.modify(connection, events)

    # -- connecting -------------------------------------------------------------------

    def _dial(self) -> None:
        threading.Thread(target=self._connect, name="moontide-dial", daemon=True).start()

    def _connect(self) -> None:
        """On its own thread: until it works or the client closes."""
        try:
            connection, attachment = self._dialer.connect(Deadline(MAX_TIMEOUT_SECONDS))
        except StoreError as error:
            if not self._dialer.is_stopped:
                logger.warning("store refuses the client error=%s", error)
                self.post(lambda: self._redial_after(REDIAL_SECONDS))
            return
        self.post(lambda: self._adopt(connection, attachment))
        if self._closed:
            self._run_inbox()  # nobody else will

    def _redial_after(self, seconds: float) -> None:
        """With jitter, so that many clients do not return at once."""
        self.call_at(time.monotonic() + seconds * random.uniform(0.5, 1.5), self._dial)

    def _adopt(self, connection: Connection, attachment: Attachment) -> None:
        if self._closed:
            self._dialer.hang_up(connection)
            return
        connection.sock.setblocking(False)
        self._connection, self.attachment = connection, attachment
        self._adopted = self._heard = time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ)
        for listener in list(self._listeners):
            listener.attached()

    def _lose(self, reason: str) -> None:
        connection = self._connection
        if connection is None:
            return
        self._selector.unregister(connection)
        if self.attachment is not None:
            self.attachment.forget_locations()
        self._connection = self.attachment = None
        self._sending = False
        self._dialer.hang_up(connection)
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.on_reply(ChannelReply(None))
        for listener in list(self._listeners):
            listener.detached()
        if not self._closed:
            logger.info("store connection lost reason=%s", reason)
            if time.monotonic() - self._adopted < LEAST_LIFE_SECONDS:
                self._redial_after(PAUSE_SECONDS)
            else:
                self._dial()

    def give_up_if_silent(self) -> None:
        """A job missed its deadline: ends the connection, and with it whatever the daemon holds for
        it, when an answer has been due for SILENCE_SECONDS without a sign."""
        due = min((each.due for each in self._pending.values()), default=math.inf)
        if time.monotonic() - max(due, self._heard) >= SILENCE_SECONDS:
            self._lose("the store does not answer")

    def _tend_again(self) -> None:
        self.call_at(time.monotonic() + self._tend(), self._tend_again)

    def _stop(self) -> None:
        self._closed = True
        self._lose("closed")


def _patience(message: wire.Request) -> float:
    """Seconds that the daemon may take to answer."""
    if isinstance(message, wire.AwaitExtents | wire.FetchBlocks):
        return message.timeout_s
    if isinstance(message, wire.LookupBlocks):
        return message.wait_s + (message.timeout_s or 0.0)
    return 0.0
