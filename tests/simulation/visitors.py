"""The clients of one world: one by each transport at each node, and who comes in their place."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from .cluster import Cluster, Node
from .history import History
from .machine.scheduler import Process, Thread
from .machine.world import World
from .visitor import Visitor

PATIENCE_SECONDS = 60.0
"""For a visitor to end after its time."""
NUMS_OF_KEYS = (1, 2, 6)
"""One for each world: the fewer, the more happens to each."""


@dataclass
class _Seat:
    """Where a visitor is, and who now."""

    node: Node
    transport: str
    host: str
    visitor: Visitor
    process: Process
    thread: Thread


class Visitors:
    def __init__(self, world: World, cluster: Cluster, history: History, *, ends_at: float) -> None:
        self.failures: list[str] = []
        self._world = world
        self._cluster = cluster
        self._history = history
        self._ends_at = ends_at
        self._num_keys = world.rng.choice(NUMS_OF_KEYS)
        self._names = itertools.count()
        self._seats = [
            self._take_seat(node, transport, node.host if transport == "unix" else f"10.0.1.{i}")
            for i, node in enumerate(cluster.nodes)
            for transport in ("unix", "tcp")
        ]

    def _take_seat(self, node: Node, transport: str, host: str) -> _Seat:
        visitor = Visitor(
            self._world,
            self._cluster,
            self._history,
            name=f"c{next(self._names)}",
            node=node,
            transport=transport,
            num_keys=self._num_keys,
            failures=self.failures,
        )
        process = self._world.process(visitor.name, host)
        thread = self._world.run(process, lambda: visitor.run(self._ends_at))
        return _Seat(node, transport, host, visitor, process, thread)

    def kill_one(self, rng: random.Random) -> str:
        """Its name; another takes its place."""
        seat = rng.choice(self._seats)
        self._world.kill(seat.process)
        self.replace_killed()
        return seat.visitor.name

    def replace_killed(self) -> None:
        self._seats = [
            self._take_seat(seat.node, seat.transport, seat.host)
            if seat.process.is_killed
            else seat
            for seat in self._seats
        ]

    def await_end(self) -> None:
        for seat in self._seats:
            if seat.process.is_killed:
                continue
            left = self._ends_at - self._world.now + PATIENCE_SECONDS
            if not self._world.scheduler.join(seat.thread, left):
                self.failures.append(f"{seat.visitor.name} does not end")
            else:
                self._world.kill(seat.process)
