"""What goes wrong in a world, drawn from its seed, one thing after another; at the end all is well
again."""

from __future__ import annotations

import random
from collections.abc import Callable

from .cluster import Cluster, Node
from .machine.scheduler import START_SECONDS
from .machine.world import World

LEAST_SECONDS, MOST_SECONDS = 0.05, 2.0
"""Between two troubles."""


class Trouble:
    """`log` says what was done when."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.log: list[str] = []
        self._world = world
        self._cluster = cluster
        self._rng = random.Random(world.rng.getrandbits(64))

    def make(self, until: float) -> None:
        """Returns after `until`, when nothing is wrong any more."""
        acts: tuple[Callable[[Node], None], ...] = (
            self._kill,
            self._restart,
            self._cut,
            self._slow,
            self._forget_record,
        )
        while True:
            self._world.scheduler.sleep(self._rng.uniform(LEAST_SECONDS, MOST_SECONDS))
            if self._world.now >= until:
                break
            self._rng.choice(acts)(self._rng.choice(self._cluster.nodes))
        self._world.network.heal()
        self._tell("all links are good")

    def _tell(self, what: str) -> None:
        self.log.append(f"{self._world.now - START_SECONDS:.3f} {what}")

    def _pause(self) -> None:
        self._world.scheduler.sleep(self._rng.choice((0.0, 0.5, 8.0)) * self._rng.random())

    def _kill(self, node: Node) -> None:
        self._tell(f"kill {node.name}")
        self._cluster.kill(node)
        self._pause()
        self._tell(f"start {node.name}")
        self._cluster.start(node)

    def _restart(self, node: Node) -> None:
        self._tell(f"terminate {node.name}")
        self._cluster.terminate(node)
        self._pause()
        self._tell(f"start {node.name}")
        self._cluster.start(node)

    def _cut(self, node: Node) -> None:
        other = self._rng.choice([each for each in self._cluster.nodes if each is not node])
        self._tell(f"cut {node.name}-{other.name}")
        self._world.network.cut(node.host, other.host)
        self._pause()
        self._world.network.heal()
        self._tell("heal")

    def _slow(self, node: Node) -> None:
        other = self._rng.choice([each for each in self._cluster.nodes if each is not node])
        self._tell(f"slow {node.name}-{other.name}")
        self._world.network.slow(node.host, other.host, self._rng.choice((500.0, 20_000.0)))
        self._pause()
        self._world.network.heal()
        self._tell("heal")

    def _forget_record(self, node: Node) -> None:
        self._tell(f"forget the record of {node.name}")
        (self._cluster.members / f"store-{node.name}.member").unlink(missing_ok=True)
