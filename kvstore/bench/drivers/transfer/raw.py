"""Raw sockets in Python: what a transfer over TCP can do at best. One blocking thread a stream at
both ends, a request of a few bytes, and nothing checked."""

from __future__ import annotations

import contextlib
import platform
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..areas import Area
from ..contract import Failed
from ..serving import Driver, serve
from .contract import Call, Remote, Span, Way
from .halves import Announce, Serve, ServerHalf, areas_of
from .timing import Bench

HOST = "127.0.0.1"
REQUEST = struct.Struct("<BBQQ")  # is a write | remote area, offset, length
DONE = b"."
Receive = Callable[[socket.socket, memoryview], None]
"""Fills the buffer."""


def with_recv_into(sock: socket.socket, buffer: memoryview) -> None:
    while buffer:
        buffer = buffer[_some(sock.recv_into(buffer)) :]


def with_recvmsg_into(sock: socket.socket, buffer: memoryview) -> None:
    while buffer:
        buffer = buffer[_some(sock.recvmsg_into([buffer])[0]) :]


def with_waitall(sock: socket.socket, buffer: memoryview) -> None:
    while buffer:
        buffer = buffer[_some(sock.recv_into(buffer, len(buffer), socket.MSG_WAITALL)) :]


VARIANTS: Mapping[str, Receive] = {
    "recv_into": with_recv_into,
    "recvmsg_into": with_recvmsg_into,
    "MSG_WAITALL": with_waitall,
}


def serving(receive: Receive) -> Serve:
    @contextlib.contextmanager
    def serve_areas(areas: tuple[Area, Area], announce: Announce) -> Iterator[None]:
        with socket.create_server((HOST, 0)) as listener:
            threading.Thread(target=_accept, args=(listener, areas, receive), daemon=True).start()
            announce({"port": listener.getsockname()[1]})
            yield

    return serve_areas


def _accept(listener: socket.socket, areas: tuple[Area, Area], receive: Receive) -> None:
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=_answer, args=(sock, areas, receive), daemon=True).start()


def _answer(sock: socket.socket, areas: tuple[Area, Area], receive: Receive) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = memoryview(bytearray(REQUEST.size))
    with sock, contextlib.suppress(Failed, OSError):
        while True:
            receive(sock, head)
            writes, area, offset, length = REQUEST.unpack(head)
            memory = areas[area].view[offset : offset + length]
            if writes:
                receive(sock, memory)
                sock.sendall(DONE)
            else:
                sock.sendall(memory)


class Stream:
    """One connection, used by one thread at a time."""

    def __init__(self, port: int, receive: Receive) -> None:
        self._receive = receive
        self._sock = socket.create_connection((HOST, port))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, remote: Remote, offset: int, target: memoryview) -> None:
        self._sock.sendall(REQUEST.pack(0, remote, offset, len(target)))
        self._receive(self._sock, target)

    def write(self, remote: Remote, offset: int, source: memoryview) -> None:
        self._sock.sendmsg([REQUEST.pack(1, remote, offset, len(source))], [], socket.MSG_MORE)
        self._sock.sendall(source)
        self._receive(self._sock, memoryview(bytearray(DONE)))

    def close(self) -> None:
        self._sock.close()


class Helper:
    """A thread that does what it is told."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self, call: Call) -> None:
        self._told.put(call)

    def join(self) -> None:
        """Waits for what it was told last. Raises what that raised."""
        error = self._done.get()
        if error is not None:
            raise error

    def close(self) -> None:
        self._told.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (call := self._told.get()) is not None:
            try:
                call()
            except Exception as error:  # noqa: BLE001 - thread boundary: raised again in join
                self._done.put(error)
            else:
                self._done.put(None)


class Sockets:
    """The slices of a call lie side by side, so each stream of a thread moves an equal stretch; of
    a few bytes some streams move none."""

    def __init__(self, areas: tuple[Area, Area], port: int, receive: Receive) -> None:
        self._areas = areas
        self._port = port
        self._receive = receive
        self._streams: list[list[Stream]] = []  # of each thread
        self._helpers: list[list[Helper]] = []

    def open(self, streams: int, threads: int) -> None:
        """At least one a thread."""
        self.close()
        each = max(streams // threads, 1)
        self._streams = [
            [Stream(self._port, self._receive) for _ in range(each)] for _ in range(threads)
        ]
        self._helpers = [[Helper() for _ in range(each - 1)] for _ in range(threads)]

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        start, length = slices[0].offset, sum(span.length for span in slices)
        streams, helpers = self._streams[thread], self._helpers[thread]
        share = -(-length // len(streams))
        memory = self._areas[way.local].view[start : start + length]
        parts = [
            self._part(stream, way, start + first, memory[first : first + share])
            for stream, first in zip(streams, range(0, length, share), strict=False)
        ]
        told = helpers[: len(parts) - 1]

        def call() -> None:
            for helper, part in zip(told, parts[1:], strict=True):
                helper.tell(part)
            parts[0]()
            for helper in told:
                helper.join()

        return call

    def close(self) -> None:
        for helper in (helper for helpers in self._helpers for helper in helpers):
            helper.close()
        for stream in (stream for streams in self._streams for stream in streams):
            stream.close()

    def _part(self, stream: Stream, way: Way, offset: int, memory: memoryview) -> Call:
        move = stream.read if way.do == "read" else stream.write
        return lambda: move(way.remote, offset, memory)


def begin(request: Mapping[str, Any]) -> Driver:
    receive = VARIANTS[request["variant"]]
    server = ServerHalf(serving(receive), request["area_bytes"])
    areas = areas_of(request["area_bytes"])
    sockets = Sockets(areas, server.hello["port"], receive)

    def close() -> None:
        sockets.close()
        server.close()

    bench = Bench(sockets, areas, server.cpu_seconds)
    return Driver(f"Python {platform.python_version()}", bench.operations(), close=close)


def _some(received: int) -> int:
    if not received:
        raise Failed("the peer closed the connection")
    return received


if __name__ == "__main__":
    serve(begin)
