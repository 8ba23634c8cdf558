"""`socket.socket` on a simulated network: what programs of ours and asyncio use of it."""

from __future__ import annotations

import array
import errno
import io
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from .files import File, Files
from .network import PATIENCE_SECONDS, RETRY_SECONDS, Address, Network, Piece, Pipe
from .reading import Reading
from .scheduler import Process

_TIMEVAL = struct.Struct("@ll")
_LINGER = struct.Struct("ii")
_CREDENTIALS = struct.Struct("3i")
SHORT_RATIO = 0.05
"""Of sends and receives that move less than they could."""
Buffer = bytes | bytearray | memoryview


class Socket(File):
    """A stream socket of one process, listening or connected."""

    def __init__(
        self,
        files: Files,
        network: Network,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        *,
        process: Process | None = None,
    ) -> None:
        """Of the process that asks, unless told."""
        super().__init__(files)
        self.family = socket.AddressFamily(family)
        self.type = socket.SocketKind(type & 0xF)
        self.proto = proto
        self._files = files
        self._network = network
        self._scheduler = files.scheduler
        self._process = process or files.scheduler.current.process
        self._timeout: float | None = None
        self._receive_limit: float | None = None  # SO_RCVTIMEO
        self._send_limit: float | None = None
        self._lingers = True
        self._closed = self._is_given_up = False
        self._readers = 0
        self._is_shut = False
        self._name: Address = "" if family == socket.AF_UNIX else ("0.0.0.0", 0)
        self._peer_name: Address = self._name
        self._peer_pid = 0
        self._backlog: deque[Socket] | None = None  # of a listener
        self._in: Pipe | None = None
        self._out: Pipe | None = None
        self._error = 0  # of a connect
        self._connecting = False
        self._process.on_kill.append(self._killed)

    def __repr__(self) -> str:
        return f"<{self._process.name} {self._name}->{self._peer_name}>"

    # -- readiness ------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        if self._backlog is not None:
            return bool(self._backlog) or self._is_shut
        pipe = self._in
        if pipe is None:
            return bool(self._error)
        return bool(pipe.received) or pipe.is_ended or pipe.error is not None or self._is_shut

    @property
    def is_writable(self) -> bool:
        if self._out is None:
            return bool(self._error)
        return self._out.room > 0 or self.is_hung_up

    @property
    def is_hung_up(self) -> bool:
        if self._in is None:
            return bool(self._error)
        return self._in.error is not None or self._is_shut

    # -- options ----------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._closed else self.descriptor

    def setblocking(self, flag: bool) -> None:
        self._timeout = None if flag else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        if level == socket.SOL_SOCKET and isinstance(value, bytes):
            if option == socket.SO_LINGER:
                is_on, seconds = _LINGER.unpack(value)
                self._lingers = not is_on or seconds > 0
            elif option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                seconds, micros = _TIMEVAL.unpack(value)
                limit = seconds + micros / 1e6 or None
                if option == socket.SO_RCVTIMEO:
                    self._receive_limit = limit
                else:
                    self._send_limit = limit

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        if option == socket.SO_PEERCRED and size:
            return _CREDENTIALS.pack(self._peer_pid, 0, 0)
        if option == socket.SO_ERROR:
            error, self._error = self._error, 0
            return error
        return 0

    def getsockname(self) -> Address:
        return self._name

    def getpeername(self) -> Address:
        if self._in is None:
            raise _error(errno.ENOTCONN)
        return self._peer_name

    # -- listening ----------------------------------------------------------------------

    def bind(self, address: Address) -> None:
        if isinstance(address, str):
            with socket.socket(socket.AF_UNIX) as real:  # for its file
                real.bind(address)
        else:
            host, port = address[:2]
            address = (host, port or self._network.free_port())
        if address in self._network.listeners:
            raise _error(errno.EADDRINUSE)
        self._name = address

    def listen(self, backlog: int = 128) -> None:
        self._backlog = self._backlog if self._backlog is not None else deque()
        self._network.listeners[self._name] = self

    def accept(self) -> tuple[Socket, Address]:
        assert self._backlog is not None
        ends_at = self._ends_at(0, None)
        while not self._backlog:
            if self._is_shut or self._closed:
                raise _error(errno.EINVAL)
            self._block(ends_at)
        accepted = self._backlog.popleft()
        return accepted, accepted._peer_name

    # -- connecting ---------------------------------------------------------------------

    def connect(self, address: Address) -> None:
        if isinstance(address, str):
            self._connect_local(address)
            return
        if self._name == ("0.0.0.0", 0):
            self._name = (self._process.host, self._network.free_port())
        self._peer_name = target = (address[0], address[1])
        self._connecting = True
        gives_up_at = self._scheduler.now + PATIENCE_SECONDS
        delay = self._network.delay(self._process.host, target[0], 0)
        self._scheduler.call_later(delay, lambda: self._knock(target, gives_up_at))
        if self._timeout == 0.0:
            raise _error(errno.EINPROGRESS)
        ends_at = self._ends_at(0, None)
        while self._connecting:
            self._block(ends_at)
        if self._error:
            error, self._error = self._error, 0
            raise _error(error)

    def _connect_local(self, path: str) -> None:
        listener = self._network.listeners.get(path)
        if listener is None:
            raise _error(errno.ECONNREFUSED if os.path.exists(path) else errno.ENOENT)
        self._meet(listener, path)

    def _knock(self, target: tuple[str, int], gives_up_at: float) -> None:
        """At the other host; again and again while the link is cut."""
        if self._closed:
            return
        host = self._process.host
        if self._network.is_cut(host, target[0]):
            if self._scheduler.now >= gives_up_at:
                self._connected(errno.ETIMEDOUT)
            else:
                self._scheduler.call_later(RETRY_SECONDS, lambda: self._knock(target, gives_up_at))
            return
        listener = self._network.listeners.get(target) or self._network.listeners.get(
            ("0.0.0.0", target[1])
        )
        back = self._network.delay(target[0], host, 0)
        if listener is None or listener._process.host != target[0]:
            self._scheduler.call_later(back, lambda: self._connected(errno.ECONNREFUSED))
            return
        self._scheduler.call_later(back, lambda: self._connected(0))
        self._meet(listener, target)

    def _connected(self, error: int) -> None:
        self._connecting = False
        self._error = error
        self.changed()

    def _meet(self, listener: Socket, address: Address) -> None:
        ours, theirs = self._network.pipes(self._process.host, listener._process.host)
        other = Socket(self._files, self._network, self.family, process=listener._process)
        other._name, other._peer_name = address, self._name
        self._peer_name = address
        other._peer_pid, self._peer_pid = self._process.pid, listener._process.pid
        self._join(theirs, ours)
        other._join(ours, theirs)
        assert listener._backlog is not None
        listener._backlog.append(other)
        listener.changed()

    def _join(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._in, self._out = incoming, outgoing
        incoming.on_arrival = self.changed
        outgoing.on_room = self.changed
        outgoing.on_lost = self._lost

    def _lost(self) -> None:
        """What we sent cannot arrive any more."""
        assert self._in is not None
        self._in.break_off(errno.ECONNRESET)

    # -- moving bytes -------------------------------------------------------------------

    def send(self, data: Buffer, flags: int = 0) -> int:
        return self._send(memoryview(data).cast("B"), flags, ())

    def sendall(self, data: Buffer, flags: int = 0) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self._send(rest, flags, ()) :]

    def sendmsg(
        self,
        buffers: Iterable[Buffer],
        ancillary: Sequence[tuple[int, int, Any]] = (),
        flags: int = 0,
    ) -> int:
        descriptors = tuple(
            self._files.duplicate(descriptor)
            for level, kind, rights in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for descriptor in array.array("i", bytes(rights))
        )
        try:
            return self._send(memoryview(b"".join(buffers)), flags, descriptors)
        except OSError:
            self._files.close_real(descriptors)
            raise

    def recv(self, num_bytes: int, flags: int = 0) -> bytes:
        self._await_bytes(flags)
        return self._take(num_bytes)

    def recv_into(self, buffer: Any, num_bytes: int = 0, flags: int = 0) -> int:
        target = memoryview(buffer).cast("B")
        return self._fill([target[:num_bytes] if num_bytes else target], flags)

    def recvmsg(
        self, num_bytes: int, ancillary_bytes: int = 0, flags: int = 0
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        self._await_bytes(flags)
        descriptors = self._take_descriptors()
        data = self._take(num_bytes)
        rights = array.array("i", descriptors).tobytes()
        messages = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        return data, messages, 0, None

    def recvmsg_into(
        self, buffers: Sequence[Any], ancillary_bytes: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, None]:
        return self._fill([memoryview(buffer).cast("B") for buffer in buffers], flags), [], 0, None

    def _fill(self, targets: Sequence[memoryview], flags: int) -> int:
        """With what comes, as it comes."""
        room = sum(len(target) for target in targets)
        filled = 0
        while True:
            try:
                self._await_bytes(flags)
            except BlockingIOError:
                if filled:
                    return filled
                raise
            data = self._take(room - filled)
            _put(data, targets, filled)
            filled += len(data)
            if not data or filled == room or not flags & socket.MSG_WAITALL:
                return filled

    def _send(self, data: memoryview, flags: int, descriptors: tuple[int, ...]) -> int:
        self._check_open()
        ends_at = self._ends_at(flags, self._send_limit)
        while True:
            if self._out is None:
                raise _error(errno.ENOTCONN)
            assert self._in is not None
            if self._in.error is not None:
                raise _error(self._in.error)
            if self._is_shut:
                raise _error(errno.EPIPE)
            if self._out.room or not data:
                break
            self._block(ends_at)
        count = self._some(min(self._out.room, len(data)))
        if count:
            self._out.send(Piece(bytes(data[:count]), descriptors))
        return count

    def _await_bytes(self, flags: int) -> None:
        """Until there are some, or will be no more."""
        self._check_open()
        ends_at = self._ends_at(flags, self._receive_limit)
        while not self.is_readable:
            self._block(ends_at)
        if self._in is None:
            raise _error(errno.ENOTCONN)
        if not self._in.received and self._in.error is not None and not self._is_shut:
            error, self._in.error = self._in.error, errno.EPIPE
            if error != errno.EPIPE:
                raise _error(error)

    def _take(self, num_bytes: int) -> bytes:
        """What `_await_bytes` found; b"" at the end."""
        pipe = self._in
        assert pipe is not None
        num_bytes = min(num_bytes, len(pipe.received))
        if pipe.descriptors:
            num_bytes = min(num_bytes, max(pipe.descriptors[0][0] - pipe.taken, 1))
        count = self._some(num_bytes)
        data = bytes(pipe.received[:count])
        del pipe.received[:count]
        pipe.taken += count
        while pipe.descriptors and pipe.descriptors[0][0] < pipe.taken:
            self._files.close_real(pipe.descriptors.popleft()[1])  # nobody asked for them
        if count:
            pipe.on_room()
        return data

    def _take_descriptors(self) -> tuple[int, ...]:
        pipe = self._in
        assert pipe is not None
        if pipe.descriptors and pipe.descriptors[0][0] == pipe.taken:
            return pipe.descriptors.popleft()[1]
        return ()

    def _some(self, most: int) -> int:
        """Usually all."""
        rng = self._scheduler.rng
        return rng.randint(1, most) if most > 1 and rng.random() < SHORT_RATIO else most

    def _ends_at(self, flags: int, limit: float | None) -> float:
        """When a call that begins now has blocked for too long; 0: it may not."""
        if flags & socket.MSG_DONTWAIT or self._timeout == 0.0:
            return 0.0
        seconds = self._timeout if self._timeout is not None else limit
        return math.inf if seconds is None else self._scheduler.now + seconds

    def _block(self, ends_at: float) -> None:
        """Until something changes. Raises as the kernel does when that takes too long."""
        left = ends_at - self._scheduler.now
        if left <= 0 or not self.waiters.wait(None if ends_at == math.inf else left):
            raise TimeoutError("timed out") if self._timeout else _error(errno.EAGAIN)
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise _error(errno.EBADF)

    # -- ending -------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        if self._backlog is None and self._out is None:
            raise _error(errno.ENOTCONN)
        if self._out is not None and how != socket.SHUT_RD and not self._is_shut:
            self._out.send(Piece(b""))
        if how != socket.SHUT_WR:
            self._is_shut = True
        self.changed()

    def close(self) -> None:
        """Idempotent."""
        self._is_given_up = True
        if not self._readers:
            self._close()

    def reader_closed(self) -> None:
        self._readers -= 1
        if self._is_given_up:
            self.close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._files.forget(self.descriptor)
        if self._network.listeners.get(self._name) is self:
            del self._network.listeners[self._name]
        for waiting in self._backlog or ():
            waiting.close()
        self._hang_up()
        self.changed()

    def _hang_up(self) -> None:
        if self._in is None or self._out is None:
            return
        self._in.is_listening = False
        for _, descriptors in self._in.descriptors:
            self._files.close_real(descriptors)
        self._in.descriptors.clear()
        if self._process.lost_power:
            return
        if not self._lingers or self._in.received:
            self._out.drop()
            self._out.send(_RESET)
        elif not self._is_shut:
            self._out.send(Piece(b""))

    def _killed(self) -> None:
        """The kernel closes what the process had open, if it still runs itself."""
        if self._closed:
            return
        if self._process.lost_power and self._out is not None:
            self._out.drop()
        self._lingers = True
        self._close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """For `http.client`. The socket stays open until it is closed, too."""
        self._readers += 1
        return io.BufferedReader(Reading(self))

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_RESET = Piece(b"", is_reset=True)


def _put(data: bytes, targets: Sequence[memoryview], start: int) -> None:
    """Behind the first `start` bytes of them."""
    for target in targets:
        part = data[: max(len(target) - start, 0)]
        target[start : start + len(part)] = part
        data, start = data[len(part) :], max(start - len(target), 0)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
