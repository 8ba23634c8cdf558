"""Hosts, the links between them, and what is on its way."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from .scheduler import Scheduler

if TYPE_CHECKING:
    from .sockets import Socket

PATIENCE_SECONDS = 30.0
"""What is not acknowledged for so long ends its connection (TCP_USER_TIMEOUT)."""
LOCAL_SECONDS = 20e-6
RETRY_SECONDS = 1.0
"""Between two attempts to connect over a link that is cut."""
LOSS_RATIOS, RESEND_SECONDS = (0.0, 0.03, 0.2), 0.3
"""Of packets between hosts, one for each world, and when at most they are sent again."""
FIRST_PORT = 40_000

Address = tuple[str, int] | str
"""Of a TCP socket, or the path of a unix one."""


class Piece(NamedTuple):
    """Bytes, and descriptors that come with the first of them; no bytes: the end of the stream."""

    data: bytes
    descriptors: tuple[int, ...] = ()
    is_reset: bool = False


class Pipe:
    """One direction of a connection. In order; what is sent arrives late, or never."""

    def __init__(self, network: Network, sender: str, receiver: str, capacity: int) -> None:
        self.received = bytearray()
        self.descriptors: deque[tuple[int, tuple[int, ...]]] = deque()  # by place in the stream
        self.taken = 0  # bytes read from the stream so far
        self.is_ended = False  # everything arrived, and its end
        self.error: int | None = None
        self.on_arrival: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing
        self.on_lost: Callable[[], None] = _nothing
        self.is_listening = True  # the receiver's side is open
        self._network = network
        self.hosts = (sender, receiver)
        self._capacity = capacity
        self._under_way: deque[Piece] = deque()
        self._under_way_bytes = 0
        self._last_at = 0.0
        self._stalled = False
        self._stalls = 0

    @property
    def room(self) -> int:
        return max(self._capacity - len(self.received) - self._under_way_bytes, 0)

    def send(self, piece: Piece) -> None:
        self._under_way.append(piece)
        self._under_way_bytes += len(piece.data)
        network = self._network
        at = network.scheduler.now + network.delay(*self.hosts, len(piece.data))
        self._last_at = max(at, self._last_at)
        network.scheduler.call_at(self._last_at, self._arrive)

    def drop(self) -> None:
        """What has not arrived never will."""
        self._under_way.clear()
        self._under_way_bytes = 0

    def break_off(self, error: int) -> None:
        """The connection is over for the receiver."""
        self.error = error
        self.on_arrival()

    def resume(self) -> None:
        """The link is mended: what was held up comes, one after another."""
        if self._stalled:
            self._stalled = False
            scheduler = self._network.scheduler
            for _ in self._under_way:
                self._last_at = scheduler.now + self._network.delay(*self.hosts, 0)
                scheduler.call_at(self._last_at, self._arrive)

    def _arrive(self) -> None:
        if not self._under_way or self._stalled:
            return
        if self._network.is_cut(*self.hosts):
            self._stalled = True
            self._stalls += 1
            self._network.stalled.append(self)
            stalls = self._stalls
            self._network.scheduler.call_later(PATIENCE_SECONDS, lambda: self._lose(stalls))
            return
        piece = self._under_way.popleft()
        self._under_way_bytes -= len(piece.data)
        if piece.is_reset:
            self.break_off(errno.ECONNRESET)
            return
        if not self.is_listening:
            if piece.data:
                self.on_lost()  # the other host answers with a reset
            return
        if piece.descriptors:
            self.descriptors.append((self.taken + len(self.received), piece.descriptors))
        if piece.data:
            self.received += piece.data
        else:
            self.is_ended = True
        self.on_arrival()

    def _lose(self, stalls: int) -> None:
        if self._stalled and self._stalls == stalls:
            self.drop()
            self.on_lost()


class Network:
    """Links are as good as `delay_seconds` and `bytes_per_second` say, unless cut or slow. Each is
    changed in both directions."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.listeners: dict[Address, Socket] = {}
        self.stalled: list[Pipe] = []
        self.delay_seconds = 100e-6
        self.loss_ratio = scheduler.rng.choice(LOSS_RATIOS)
        self._cut: set[frozenset[str]] = set()
        self._down: set[str] = set()
        self._slow: dict[frozenset[str], float] = {}  # bytes a second
        self._next_port = FIRST_PORT

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def cut(self, a: str, b: str) -> None:
        self._cut.add(frozenset((a, b)))

    def slow(self, a: str, b: str, bytes_per_second: float) -> None:
        self._slow[frozenset((a, b))] = bytes_per_second

    def mend(self, a: str, b: str) -> None:
        self._cut.discard(frozenset((a, b)))
        self._slow.pop(frozenset((a, b)), None)
        self._resume()

    def _resume(self) -> None:
        stalled, self.stalled = self.stalled, []
        for pipe in stalled:
            if self.is_cut(*pipe.hosts):
                self.stalled.append(pipe)
            else:
                pipe.resume()

    def heal(self) -> None:
        """Every link; and nothing is lost any more."""
        self.loss_ratio = 0.0
        for link in {*self._cut, *self._slow}:
            self.mend(*link)

    def take_down(self, host: str) -> None:
        """Nothing leaves it or comes to it."""
        self._down.add(host)

    def bring_up(self, host: str) -> None:
        self._down.discard(host)
        self._resume()

    def is_cut(self, a: str, b: str) -> bool:
        return frozenset((a, b)) in self._cut or a in self._down or b in self._down

    def delay(self, a: str, b: str, num_bytes: int) -> float:
        rng = self.scheduler.rng
        if a == b:
            return LOCAL_SECONDS * rng.uniform(0.5, 2.0)
        seconds = self.delay_seconds * rng.uniform(0.5, 2.0)
        if rng.random() < self.loss_ratio:
            seconds += rng.uniform(0.0, RESEND_SECONDS)
        rate = self._slow.get(frozenset((a, b)))
        return seconds if rate is None else seconds + num_bytes / rate

    def pipes(self, a: str, b: str) -> tuple[Pipe, Pipe]:
        """There and back, between hosts."""
        capacity = self.scheduler.rng.choice((4 << 10, 16 << 10, 64 << 10, 256 << 10))
        return Pipe(self, a, b, capacity), Pipe(self, b, a, capacity)


def _nothing() -> None:
    """Nobody has asked to be told."""
