"""One connection of a client, and the thread that serves it when nobody else does."""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .. import wire
from ..batches import DONE, Batch, Batches
from ..errors import Malformed, TransferError, Unavailable
from ..types import Opcode, SliceState, SliceStatus
from ..wire import Header, Kind
from .asked import Asked
from .frames import FrameReader, FrameWriter, Nowhere
from .pace import Pace
from .patience import be_patient
from .pieces import Piece, settle
from .turn import Turn

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
"""How long a call on the socket may block before the thread looks at what else it was told."""
_GONE = select.EPOLLRDHUP
_ANSWERS = select.EPOLLIN | select.EPOLLRDHUP
"""What the thread is woken by: only that the peer left, when nothing is due or others receive."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    window_pieces: int = 64  # sent and not answered
    window_bytes: int = 8 << 20  # two of the largest pieces
    stall_seconds: float = 10.0  # less than 64 KiB in this time while answers are due
    idle_seconds: float = 30.0  # less than the server's


class Carrier(Protocol):
    """What a stream needs of its route."""

    @property
    def has_work(self) -> bool: ...
    def take(self, max_pieces: int, max_bytes: int) -> list[Piece]: ...
    def retire(self, stream: Stream) -> bool: ...
    def lost(self, stream: Stream, carried: Sequence[Piece], error: TransferError) -> None: ...


Dial = Callable[[], tuple[socket.socket, int]]
"""A connected socket after its handshake, and the version of the wire that both ends speak. Raises
TransferError; bounded in time."""


class Stream:
    """Takes pieces from its route, sends their requests and receives the answers. Whoever brings
    work sends what the socket takes of it; who waits for a batch receives its answers, and those
    that come before them: no other thread is woken. The stream's own thread does what is left.

    Only who has the turn receives, touches the memory of the pieces that were taken, and settles
    them after the last touch. `_lock` guards what is asked and sent, and the socket while others
    may use it."""

    def __init__(self, route: Carrier, dial: Dial, batches: Batches, limits: StreamLimits) -> None:
        self._route = route
        self._dial = dial
        self._batches = batches
        self._limits = limits
        self._turn = Turn()
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        nowhere = Nowhere()
        self._asked = Asked(nowhere)
        self._writer = FrameWriter()
        self._reader = FrameReader(self._place, self._complete, nowhere)
        self._reason = memoryview(bytearray(wire.MAX_REASON_BYTES))
        self._pace = Pace(limits.stall_seconds, 0.0)
        self._stopped = False
        self._sweep_wanted = False
        self._wake_lock = threading.Lock()
        self._asleep = select.epoll()  # of the thread, without the turn
        self._wake_descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asleep.register(self._wake_descriptor, select.EPOLLIN)
        self._watched = _GONE  # events of the socket that wake the thread
        self._poller = select.poll()  # of who has the turn and something to send
        self._thread = threading.Thread(target=self._run, name="transfer-stream", daemon=True)
        self.connected = False

    # -- from other threads -------------------------------------------------------

    def start(self) -> None:
        """Raises RuntimeError when this process can have no more threads."""
        try:
            self._thread.start()
        except RuntimeError:
            self._close_wake()
            raise

    @property
    def asked_bytes(self) -> int:
        """Under way; may be outdated at once."""
        return self._asked.num_bytes

    def offer(self, most_bytes: int) -> None:
        """There is work, of which this stream may have so much now. Never waits."""
        if not self._send_at_once(most_bytes):
            self.wake()

    def _send_at_once(self, most_bytes: int) -> bool:
        """False: the thread has to look after it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._sock is None:
                return False
            self._refill(most_bytes)
            self._flush(self._sock, socket.MSG_DONTWAIT)
            return not self._writer.num_waiting
        except OSError:
            return False  # the thread will see it, too
        finally:
            self._lock.release()

    def listen(self) -> None:
        """Whoever asked does not receive what is due, so the thread does. While somebody has the
        turn it is left to him, who calls this when he gave it back."""
        is_heard = self._watched & select.EPOLLIN or not (
            self._asked.num_bytes or self._writer.num_waiting
        )
        if is_heard or self._turn.is_taken():
            return
        with self._lock:
            if self._sock is not None:
                self._watch(self._sock)

    def receive_for(self, batch: Batch) -> None:
        """The calling thread waits for that batch: it receives what comes, until nothing of the
        batch is due here. When another thread receives, that one does."""
        if self._turn.take():
            try:
                with self._turn:
                    self._turn.check()
                    if self._sock is not None:
                        self._receive_for(batch, self._sock)
            except BaseException as error:
                self.wake()  # the connection ends
                if not isinstance(error, TransferError | OSError):
                    raise
            if self._writer.num_waiting or self._route.has_work:
                self.wake()
        self.listen()

    def wake(self) -> None:
        """There is something to look at."""
        with self._wake_lock:
            if self._wake_descriptor >= 0:
                os.eventfd_write(self._wake_descriptor, 1)

    def sweep(self) -> None:
        """Lets go of pieces whose batch is ending."""
        self._sweep_wanted = True
        self.wake()

    def stop(self) -> None:
        self._stopped = True
        self.wake()

    def join(self, timeout_s: float) -> None:
        """Waits for the thread, but not for one that is still dialling: it holds no piece."""
        if self.connected:
            self._thread.join(timeout_s)

    # -- the thread ---------------------------------------------------------------

    def _run(self) -> None:
        error = self._carry()
        self._close_wake()
        if error is not None:
            self._route.lost(self, self._asked.carried(self._writer.waiting()), error)

    def _close_wake(self) -> None:
        with self._wake_lock:
            self._asleep.close()
            os.close(self._wake_descriptor)
            self._wake_descriptor = -1

    def _carry(self) -> TransferError | None:
        """Until it is idle (None: it has left its route) or something ends it."""
        try:
            sock, version = self._dial()
            with sock:
                self.connected = True
                self._writer.bundles = version >= wire.BUNDLES_VERSION
                be_patient(sock, min(_LOOK_SECONDS, self._limits.stall_seconds))
                self._asleep.register(sock, self._watched)
                self._poller.register(sock, select.POLLIN | select.POLLOUT)
                self._others_may_use(sock)
                try:
                    return self._exchange(sock)
                finally:
                    self._others_may_use(None)
        except TransferError as error:
            return error
        except OSError as error:
            return Unavailable(f"the connection was lost: {error.strerror or error}")
        except Exception as error:  # thread boundary: no piece may stay pending
            logger.exception("transfer stream failed")
            return Unavailable(f"internal error: {error!r}")

    def _exchange(self, sock: socket.socket) -> TransferError | None:
        self._pace.restart(time.monotonic())
        ready: dict[int, int] | None = {}
        while ready is not None and not self._stopped:
            self._turn.wait()
            with self._turn:
                self._turn.check()
                self._tend(sock, ready)
            self.listen()
            ready = self._sleep()
        return Unavailable("this transport closes the connection") if self._stopped else None

    def _tend(self, sock: socket.socket, ready: dict[int, int]) -> None:
        """All that can be done now."""
        if self._wake_descriptor in ready:
            os.eventfd_read(self._wake_descriptor)
        if sock.fileno() in ready and not self._asked.num_bytes:
            # Nothing is due: the peer has gone, or speaks out of turn.
            self._hear(sock, socket.MSG_DONTWAIT)
        while not self._stopped and self._advance(sock):
            pass
        with self._lock:
            self._watch(sock)

    def _sleep(self) -> dict[int, int] | None:
        """What wakes the thread, or nothing does for so long that it looks; None when it was idle
        too long and has left."""
        limits, now = self._limits, time.monotonic()
        due = bool(self._asked.num_bytes)
        idle = limits.idle_seconds - self._pace.quiet(now)
        patience = self._patience(now) if due else min(idle, limits.stall_seconds)
        ready = dict(self._asleep.poll(max(patience, 0)))
        return None if not ready and not due and idle <= patience and self._retire() else ready

    def _patience(self, now: float) -> float:
        """Seconds that what is due may be waited for before somebody looks at it."""
        return self._asked.patience(self._limits.stall_seconds - self._pace.quiet(now))

    def _watch(self, sock: socket.socket) -> None:
        """What is due wakes the thread, and nothing else does. Under `_lock`."""
        events = _ANSWERS if self._asked.num_bytes else _GONE
        self._set_watched(sock, events | (select.EPOLLOUT if self._writer.num_waiting else 0))

    def _set_watched(self, sock: socket.socket, events: int) -> None:
        if self._watched != events:
            self._watched = events
            self._asleep.modify(sock, events)

    def _retire(self) -> bool:
        """Unless somebody asked for something meanwhile."""
        self._turn.wait()
        with self._turn, self._lock:
            if self._asked.num_bytes or not self._route.retire(self):
                return False
            self._sock = None
            return True

    # -- who has the turn ---------------------------------------------------------

    def _receive_for(self, batch: Batch, sock: socket.socket) -> None:
        if self._watched != _GONE:
            with self._lock:
                self._set_watched(sock, _GONE)
        while batch.pending and not self._stopped:
            self._send(sock)
            if not self._asked.num_bytes or (
                self._reader.current is None and not self._asked.carries(batch)
            ):
                break
            if self._writer.num_waiting:
                self._poller.poll(_LOOK_SECONDS * 1000)
                self._receive(sock, socket.MSG_DONTWAIT)
            else:
                self._receive(sock, 0)

    def _advance(self, sock: socket.socket) -> bool:
        """Sends what there is and receives what has come of a header, or waits for a payload;
        False: nothing came."""
        self._send(sock)
        return bool(self._asked.num_bytes) and self._receive(sock, socket.MSG_DONTWAIT)

    def _receive(self, sock: socket.socket, flags: int) -> bool:
        """Once, with these flags for a header; False: nothing came of what is due."""
        now = time.monotonic()
        if self._asked.unwanted_bytes:
            self._leave_unwanted(now)
        self._pace.left(now)
        return self._hear(sock, flags)

    def _hear(self, sock: socket.socket, flags: int) -> bool:
        try:
            self._pace.moved(self._reader.step(sock, flags), time.monotonic())
        except BlockingIOError:
            return False
        return True

    def _others_may_use(self, sock: socket.socket | None) -> None:
        self._turn.wait()
        with self._turn, self._lock:
            self._sock = sock

    # -- sending ------------------------------------------------------------------

    def _send(self, sock: socket.socket) -> None:
        """What the window has room for; a payload at once and whole, unless answers may come
        meanwhile for which the peer would wait."""
        if not (self._writer.num_waiting or self._sweep_wanted or self._route.has_work):
            return
        with self._lock:
            if self._sweep_wanted:
                self._sweep_wanted = False
                self._let_ending_go()
            self._refill(self._limits.window_bytes)
            self._flush(sock, socket.MSG_DONTWAIT if self._asked.num_reads else 0)

    def _flush(self, sock: socket.socket, flags: int) -> None:
        if self._writer.num_waiting:
            self._pace.moved(self._writer.flush(sock, flags), time.monotonic())

    def _refill(self, most_bytes: int) -> None:
        """Takes pieces when half of the window is free."""
        limits = self._limits
        if (
            len(self._asked) > limits.window_pieces // 2
            or self._asked.num_bytes > limits.window_bytes // 2
        ):
            return
        taken = self._route.take(
            limits.window_pieces - len(self._asked),
            min(limits.window_bytes - self._asked.num_bytes, most_bytes),
        )
        if taken and not self._asked.num_bytes:
            self._pace.restart(time.monotonic())
        for piece in taken:
            self._ask(piece)

    def _ask(self, piece: Piece) -> None:
        piece.attempts += 1
        payload = piece.view if piece.opcode is Opcode.WRITE else None
        self._writer.add(piece.header(self._asked.add(piece)), payload)

    # -- receiving ----------------------------------------------------------------

    def _place(self, header: Header) -> list[memoryview]:
        if self._writer.num_waiting:
            with self._lock:
                waiting = self._writer.waiting()
            if any(request_id in waiting for request_id in header.request_ids):
                raise Malformed(f"request {header.request_id} was answered before it was sent")
        if header.kind is Kind.FAILED:
            return [self._reason[: header.length]]
        return self._asked.places(header)

    def _complete(self, header: Header) -> None:
        with self._lock:
            self._pace.restart(time.monotonic())
            pieces = self._asked.end(header)
        if pieces is None:
            self._batches.count_unknown_notice()
            return
        status = DONE
        if header.kind is Kind.FAILED:
            text = bytes(self._reason[: header.length]).decode("utf-8", "replace")
            status = SliceStatus(SliceState.FAILED, text or "refused")
        settle(self._batches, pieces, status)

    # -- letting go ---------------------------------------------------------------

    def _let_ending_go(self) -> None:
        """Of pieces whose batch is ending. Raises Unavailable when that would leave half a request
        on the wire: the connection must end with it."""
        waiting = self._writer.waiting()
        for request_id, piece in self._asked.pieces():
            if piece.batch.ending is None:
                continue
            started = waiting.get(request_id, True)
            if not started:
                self._writer.withdraw(request_id)
                self._asked.withdraw(request_id)
            elif piece.opcode is Opcode.WRITE and request_id in waiting:
                raise Unavailable("a write was cut short")
            else:
                self._asked.let_go(request_id, time.monotonic())
                self._divert(request_id)
            settle(self._batches, [piece], piece.batch.ending)

    def _leave_unwanted(self, now: float) -> None:
        """Answers that were let go of hold up what is asked next. Raises Unavailable."""
        with self._lock:
            is_held_up = self._asked.is_held_up(now)
        if is_held_up:
            raise Unavailable(
                f"nobody wants {self._asked.unwanted_bytes} bytes that are yet to come"
            )

    def _divert(self, request_id: int) -> None:
        """The answer to that request goes nowhere from now on."""
        current = self._reader.current
        if current is not None and current.kind is not Kind.FAILED:
            self._reader.divert(self._asked.span_in(current, request_id))
