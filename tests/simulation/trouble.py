"""What goes wrong in a world, drawn from its seed, several things at a time; at the end all is well
again."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from moontide.kvstore import StoreError
from moontide.kvstore.daemon.admin.bodies import DrainAnswer

from .cluster import Cluster, Node
from .machine.scheduler import START_SECONDS
from .machine.world import World
from .visitors import Visitors

LEAST_SECONDS, MOST_SECONDS = 0.05, 3.0
"""Between two troubles of one maker."""
NUM_MAKERS = 2
LENGTHS = (0.0, 0.1, 1.0, 8.0)
"""How long something may last, at most."""
DRAIN_SECONDS = 2.0
RATES = (500.0, 20_000.0)
"""Bytes a second of a slow link."""


class Trouble:
    """`log` says what was done when."""

    def __init__(self, world: World, cluster: Cluster, visitors: Visitors) -> None:
        self.log: list[str] = []
        self._world = world
        self._cluster = cluster
        self._visitors = visitors
        self._rng = random.Random(world.rng.getrandbits(64))
        self._hit: set[str] = set()  # nodes that are in trouble
        self._alone = False  # nothing else may begin
        acts: tuple[Callable[[Node], None], ...] = (
            self._kill,
            self._restart,
            self._lose_power,
            self._stop,
            self._cut,
            self._slow,
            self._drain,
            self._forget_record,
            self._kill_visitor,
        )
        self._acts = self._rng.sample(acts, self._rng.randint(2, len(acts)))

    def make(self, until: float) -> None:
        """Returns after `until`, when nothing is wrong any more."""
        driver = self._world.scheduler.current.process
        makers = [self._world.run(driver, lambda: self._make(until)) for _ in range(NUM_MAKERS)]
        for maker in makers:
            self._world.scheduler.join(maker)
        self._world.network.heal()
        self._tell("all is well")

    def _make(self, until: float) -> None:
        while True:
            self._world.scheduler.sleep(self._rng.uniform(LEAST_SECONDS, MOST_SECONDS))
            if self._world.now >= until:
                return
            node = self._rng.choice(self._cluster.nodes)
            if node.name not in self._hit and not self._alone:
                self._hit.add(node.name)
                self._rng.choice(self._acts)(node)
                self._hit.discard(node.name)

    def _tell(self, what: str) -> None:
        self.log.append(f"{self._world.now - START_SECONDS:.3f} {what}")

    def _last(self) -> None:
        self._world.scheduler.sleep(self._rng.choice(LENGTHS) * self._rng.random())

    # -- daemons ------------------------------------------------------------------------

    def _kill(self, node: Node) -> None:
        self._tell(f"kill {node.name}")
        self._cluster.kill(node)
        self._last()
        self._start(node)

    def _restart(self, node: Node) -> None:
        self._tell(f"terminate {node.name}")
        self._cluster.terminate(node)
        self._last()
        self._start(node)

    def _lose_power(self, node: Node) -> None:
        self._tell(f"power of {node.name} lost")
        self._world.lose_power(node.host)
        self._last()
        self._world.restore_power(node.host)
        self._start(node)
        self._visitors.replace_killed()

    def _start(self, node: Node) -> None:
        self._tell(f"start {node.name}")
        self._cluster.start(node)

    def _stop(self, node: Node) -> None:
        assert node.process is not None
        self._tell(f"stop {node.name}")
        node.process.stop()
        self._last()
        self._tell(f"resume {node.name}")
        node.process.resume()

    def _drain(self, node: Node) -> None:
        self._tell(f"drain {node.name}")
        admin = self._cluster.admin(node, DRAIN_SECONDS + 1.0)
        with contextlib.suppress(StoreError):
            admin.post("/v1/drain", {"seconds": DRAIN_SECONDS}, DrainAnswer)
            self._last()
        with contextlib.suppress(StoreError):
            admin.post("/v1/undrain", {}, DrainAnswer)
        self._tell(f"drained {node.name}, and no longer")

    def _forget_record(self, node: Node) -> None:
        """By itself: who starts meanwhile, or loses its link, does not know of whoever has lost its
        record, which for up to 2 s serves what it has (ADR 0025: known)."""
        if len(self._hit) > 1 or not all(map(self._cluster.is_whole, self._cluster.nodes)):
            return
        self._tell(f"forget the record of {node.name}")
        record = self._cluster.members / f"store-{node.name}.member"
        record.unlink()
        self._alone = True
        while not record.exists():
            self._world.scheduler.sleep(0.1)
        self._alone = False

    # -- links --------------------------------------------------------------------------

    def _cut(self, node: Node) -> None:
        other = self._other(node)
        self._tell(f"cut {node.name}-{other.name}")
        self._world.network.cut(node.host, other.host)
        self._last()
        self._mend(node, other)

    def _slow(self, node: Node) -> None:
        other = self._other(node)
        self._tell(f"slow {node.name}-{other.name}")
        self._world.network.slow(node.host, other.host, self._rng.choice(RATES))
        self._last()
        self._mend(node, other)

    def _mend(self, node: Node, other: Node) -> None:
        self._tell(f"mend {node.name}-{other.name}")
        self._world.network.mend(node.host, other.host)

    def _other(self, node: Node) -> Node:
        return self._rng.choice([each for each in self._cluster.nodes if each is not node])

    # -- clients ------------------------------------------------------------------------

    def _kill_visitor(self, node: Node) -> None:
        name = self._visitors.kill_one(self._rng)
        self._tell(f"kill the client {name}, and start another")
