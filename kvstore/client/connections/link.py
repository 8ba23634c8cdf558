"""The blocking calls' way to the daemon: one request at a time, and a new connection whenever the
last one broke."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar, TypeVarTuple

from moontide.transfer import take
from moontide.transfer.errors import TransferError

from ... import wire
from ...errors import (
    ForkedClient,
    InvalidRequest,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
)
from ..deadline import Deadline
from .attachment import Attachment
from .connection import Connection, raise_failure
from .dialer import Dialer
from .frames import Buffers, ConnectionLost, OwnerLost, Place, Stream
from .interrupts import Interruptible

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Answer(NamedTuple):
    """A reply, the payload that came with it and had no place, and over which connection to which
    daemon."""

    reply: wire.Reply
    payload: memoryview
    attachment: Attachment
    connection: int  # serial; reservations and view pins belong to it


class Link:
    """Thread-safe. After a timeout the connection is closed, so that the daemon frees what it owned
    and no late reply is taken for another's; the next call opens a new one."""

    def __init__(self, dialer: Dialer, on_notice: Callable[[Attachment, wire.Reply], bool]) -> None:
        self._dialer = dialer
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self.interruptible = Interruptible(self._hang_up)
        """`with` it: what an interrupted call had reserved or pinned, and nobody knows of, ends
        with the connection (unless other calls use that: then when it ends)."""
        self._connection: Connection | None = None
        self.attachment: Attachment | None = None
        """Of the last connection; None before the first, after `close` and in a forked child."""
        self._closed = False
        self._forked = False

    def open(self, deadline: Deadline) -> Attachment:
        """The daemon there now, or a moment ago. Raises StoreUnavailable, AccessDenied,
        InvalidRequest."""
        attachment = self.attachment
        if self._connection is not None and attachment is not None:
            return attachment
        return self._in_turn(deadline, self._ready, deadline)[1]

    def ask(self, message: wire.Request, deadline: Deadline, place: Place | None = None) -> Answer:
        """For requests that may be made twice: tried again when the connection breaks. `place` is
        asked again each time."""
        while True:
            try:
                return self._in_turn(deadline, self._exchange, message, deadline, (), place)
            except ConnectionLost as lost:
                if not deadline.remaining():
                    raise StoreUnavailable(str(lost)) from lost

    def act(
        self, message: wire.Request, deadline: Deadline, payload: Buffers | Stream = ()
    ) -> Answer:
        """For requests that must not be made twice. When the connection breaks after the daemon may
        have seen it, raises StoreUnavailable: nobody knows whether it was done."""
        while True:
            try:
                return self._in_turn(deadline, self._exchange, message, deadline, payload)
            except ConnectionLost as lost:
                if lost.sent or not deadline.remaining():
                    raise _unknown(lost) from lost

    def act_on(
        self, connection: int, message: wire.Request, deadline: Deadline, payload: Buffers = ()
    ) -> Answer:
        """For requests about what `connection` owns. Raises OwnerLost when it had ended before, and
        the reservation or pin with it."""
        try:
            return self._in_turn(deadline, self._request_on, connection, message, deadline, payload)
        except ConnectionLost as lost:
            raise _unknown(lost) if lost.sent else _owner_lost() from lost

    def post_on(self, connection: int, message: wire.Request, deadline: Deadline) -> int:
        """As `act_on`, for an answer that `collect` takes later: its id."""
        try:
            return self._in_turn(deadline, self._post_on, connection, message, deadline)
        except ConnectionLost as lost:
            raise _unknown(lost) if lost.sent else _owner_lost() from lost

    def collect(self, connection: int, request_id: int, deadline: Deadline) -> wire.Reply:
        """The answer to what was posted. Raises like `act`."""
        try:
            reply = self._in_turn(deadline, self._collect, connection, request_id, deadline)
        except ConnectionLost as lost:
            raise _unknown(lost) from lost
        if isinstance(reply, wire.Failure):
            raise_failure(reply)
        return reply

    def forget(self, connection: int, request_id: int) -> None:
        """Nobody will collect what was posted."""
        with self._lock:
            if self._connection is not None and self._connection.serial == connection:
                self._connection.forget(request_id)

    def map_segment(
        self, attachment: Attachment, segment: int, deadline: Deadline, *, writable: bool = False
    ) -> None:
        """Adds the segment's mapping to `attachment`. Raises StoreUnavailable when another daemon
        answers by now."""
        try:
            message = wire.MapSegment(segment, writable)
            self._in_turn(deadline, self._map_segment, attachment, message, deadline)
        except (ConnectionLost, TransferError) as error:
            raise StoreUnavailable(f"segment {segment} could not be mapped: {error}") from error

    def release_segments(self, segments: Sequence[int], deadline: Deadline) -> None:
        """Gives unmapped segments back. Never raises a StoreError: the daemon takes back what it
        was not told about when this process ends."""
        with suppress(StoreError):
            for segment in segments:
                self.act(wire.ReleaseSegment(segment), deadline)

    def take_notices(self) -> None:
        """Handles what the daemon sent unasked, unless a call is running (which does it)."""
        if take(self._lock):
            try:
                if self._connection is not None:
                    self._connection.take_notices()
            except ConnectionLost:
                self._drop()
            finally:
                self._lock.release()

    def tell(self, connection: int, message: wire.Request) -> None:
        """About what `connection` owns, when that needs no waiting and the answer does not matter.
        Raises StoreUnavailable when it was not told."""
        if not take(self._lock):
            raise StoreUnavailable("other calls of this client use the connection")
        try:
            current = self._connection
            if current is None or current.serial != connection:
                raise StoreUnavailable("the connection is gone")
            current.tell(message)
            current.flush()
        except ConnectionLost:
            self._drop()
            raise
        finally:
            self._lock.release()

    def send_notes(self) -> None:
        """Tells the daemon what there is to tell, as far as that needs no waiting: a call that runs
        takes it along, or sends it when it is done. Finalizers may call this."""
        while not (self._closed or self._forked) and take(self._lock):
            try:
                more = self._send_notes()
            except ConnectionLost:
                self._drop()
                return
            finally:
                self._lock.release()
            if not more:
                return

    def _send_notes(self) -> bool:
        """True when others were added meanwhile."""
        connection, attachment = self._connection, self.attachment
        if connection is None or attachment is None:
            return False
        if not connection.writer:
            self._add_notes(connection, attachment)
        connection.flush()
        if connection.writer:
            attachment.notes.drop_excess()
            return False
        return attachment.takes_notes and bool(attachment.notes.released)

    def _hang_up(self) -> None:
        if take(self._lock):
            try:
                self._drop()
            finally:
                self._lock.release()

    def announce(self, connection: int) -> None:
        """A request over `connection` follows soon: the daemon wakes up meanwhile. Without
        waiting."""
        if take(self._lock):
            try:
                current = self._connection
                if current is not None and current.serial == connection:
                    current.announce()
            except ConnectionLost:
                self._drop()
            finally:
                self._lock.release()

    def check_usable(self) -> None:
        """Raises ForkedClient in a forked child, InvalidRequest after close."""
        if self._forked:
            raise ForkedClient("this client was made before a fork; connect again in the child")
        if self._closed:
            raise InvalidRequest("this client is closed; connect again")

    def close(self) -> None:
        """Idempotent. Waits for a running call, which the dialer's stop keeps short."""
        self._closed = True
        with self._lock:
            self._drop()
            self.attachment = None

    @property
    def is_forked(self) -> bool:
        return self._forked

    def after_fork(self) -> None:
        """In the child: gives up the descriptors, which stay the parent's."""
        self._forked = True
        self.attachment = None
        if self._connection is not None:
            self._connection.close()

    def _in_turn(self, deadline: Deadline, act: Callable[[*Ts], T], *args: *Ts) -> T:
        """`act(*args)` while the connection is this thread's."""
        if self._closed or self._forked:
            self.check_usable()
        if not take(self._lock) and not take(self._lock, deadline.remaining()):
            if self._connection is None:
                raise StoreUnavailable(
                    f"no store at {self._dialer.identity.address} within {deadline.timeout_s:g} s"
                )
            raise StoreTimeout(f"other calls of this client took all of {deadline.timeout_s:g} s")
        try:
            if self._closed or self._forked:
                self.check_usable()
            return act(*args)
        finally:
            self._lock.release()
            attachment = self.attachment
            if attachment is not None and attachment.notes.released:
                self.send_notes()

    @property
    def connection(self) -> int:
        """Serial of the last connection; 0 when it has ended, as far as is known."""
        return self._connection.serial if self._connection else 0

    def _owner(self, connection: int) -> tuple[Connection, Attachment]:
        current, attachment = self._connection, self.attachment
        if current is None or attachment is None or current.serial != connection:
            raise _owner_lost()
        return current, attachment

    def _request_on(
        self, connection: int, message: wire.Request, deadline: Deadline, payload: Buffers
    ) -> Answer:
        return self._request(*self._owner(connection), message, deadline, payload)

    def _post_on(self, connection: int, message: wire.Request, deadline: Deadline) -> int:
        owner, attachment = self._owner(connection)
        try:
            self._add_notes(owner, attachment)
            return owner.post(message, deadline)
        except BaseException:
            self._drop()
            raise

    def _collect(self, connection: int, request_id: int, deadline: Deadline) -> wire.Reply:
        current = self._connection
        if current is None or current.serial != connection:
            raise ConnectionLost("the connection to the store is gone")
        try:
            return current.collect(request_id, deadline)
        except BaseException:
            self._drop()
            raise

    def _map_segment(
        self, attachment: Attachment, message: wire.MapSegment, deadline: Deadline
    ) -> None:
        connection, current = self._ready(deadline)
        if current is not attachment:
            raise StoreUnavailable("another store answers at this address now; try again")
        reply = self._exchange(message, deadline, ()).reply
        assert isinstance(reply, wire.SegmentReply)
        descriptor = connection.reader.take_descriptor()
        add = attachment.add_granted if message.writable else attachment.add_readable
        add(message.segment, descriptor, reply.num_bytes)

    def _exchange(
        self,
        message: wire.Request,
        deadline: Deadline,
        payload: Buffers | Stream,
        place: Place | None = None,
    ) -> Answer:
        connection, attachment = self._connection, self.attachment
        if connection is None or attachment is None or not connection.is_local:
            connection, attachment = self._ready(deadline)
        return self._request(connection, attachment, message, deadline, payload, place)

    def _request(
        self,
        connection: Connection,
        attachment: Attachment,
        message: wire.Request,
        deadline: Deadline,
        payload: Buffers | Stream = (),
        place: Place | None = None,
    ) -> Answer:
        try:
            if attachment.notes.uses or attachment.notes.released:
                self._add_notes(connection, attachment)
            reply, received = connection.request(message, deadline, payload, place)
        except BaseException:
            self._drop()
            raise
        if type(reply) is wire.Failure:
            raise_failure(reply)
        return Answer(reply, received, attachment, connection.serial)

    def _ready(self, deadline: Deadline) -> tuple[Connection, Attachment]:
        if self._connection is not None and not self._connection.is_local:
            try:  # there a send would not notice that the other end has hung up
                self._connection.take_notices()
            except ConnectionLost:
                self._drop()
        if self._connection is None or self.attachment is None:
            connection, attachment = self._dialer.connect(deadline)
            connection.on_notice = lambda message: self._on_notice(attachment, message)
            self._connection, self.attachment = connection, attachment
        return self._connection, self.attachment

    def _add_notes(self, connection: Connection, attachment: Attachment) -> None:
        """To what is sent next."""
        if attachment.notes and attachment.takes_notes:
            connection.note(attachment.notes.take(connection.serial))

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if self.attachment is not None:
            self.attachment.forget_locations()
        if connection is not None:
            self._dialer.hang_up(connection)


def _unknown(lost: ConnectionLost) -> StoreUnavailable:
    return StoreUnavailable(f"{lost}; the call may or may not have been done")


def _owner_lost() -> OwnerLost:
    return OwnerLost("the connection that owned the entry is gone; try again")
