"""One seed from start to end, and all that is checked."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from moontide.kvstore.store import AuditReport

from .cluster import Cluster, Node
from .history import History
from .machine.scheduler import START_SECONDS
from .machine.world import World
from .trouble import Trouble
from .visitor import Visitor

PACKAGE = "moontide"
NUM_NODES = 3
SECONDS = 8.0
"""Of trouble, unless told otherwise."""
QUIET_SECONDS = 12.0
"""After the last trouble, for leases, pins and retries to end."""


@dataclass
class Outcome:
    seed: int
    digest: str
    seconds: float  # simulated
    switches: int
    counts: dict[str, int]
    wrong: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def run_seed(seed: int, *, seconds: float = SECONDS, is_troubled: bool = True) -> Outcome:
    world, history = World(seed), History()
    wrong: list[str] = []
    trouble: Trouble | None = None
    with tempfile.TemporaryDirectory(prefix="moontide-") as folder, _logged(world, wrong):
        with world.entered():
            cluster = Cluster(world, Path(folder), NUM_NODES)
            trouble = Trouble(world, cluster)
            try:
                _live(world, cluster, history, trouble if is_troubled else None, wrong, seconds)
            except Exception as error:  # noqa: BLE001  # told with the seed
                wrong.append(f"{type(error).__name__}: {error}")
            digest, ended = world.scheduler.digest.hexdigest(), world.now
        wrong += world.scheduler.errors
        wrong += history.wrong()
    return Outcome(
        seed,
        digest,
        ended - START_SECONDS,
        world.scheduler.switches,
        dict(history.counts),
        wrong,
        trouble.log,
    )


def _live(
    world: World,
    cluster: Cluster,
    history: History,
    trouble: Trouble | None,
    wrong: list[str],
    seconds: float,
) -> None:
    for node in cluster.nodes:
        cluster.start(node)
    ends_at = world.now + seconds
    visitors = [
        Visitor(world, cluster, history, name=f"c{number}", node=node, transport=transport)
        for number, (node, transport) in enumerate(
            (node, transport) for node in cluster.nodes for transport in ("unix", "tcp")
        )
    ]
    lines = []
    for number, visitor in enumerate(visitors):
        local = visitor._transport == "unix"
        host = visitor.node.host if local else f"10.0.1.{number}"
        process = world.process(visitor.name, host)
        lines.append(world.run(process, lambda v=visitor: v.run(ends_at)))
    if trouble is not None:
        trouble.make(ends_at)
    for line in lines:
        if not world.scheduler.join(line, seconds + 60.0):
            wrong.append(f"{line.name} does not end")
    for visitor in visitors:
        wrong += visitor.failures
    world.scheduler.sleep(QUIET_SECONDS)
    for node in cluster.nodes:
        wrong += _left_over(cluster, node)
    for node in cluster.nodes:
        cluster.terminate(node)


def _left_over(cluster: Cluster, node: Node) -> list[str]:
    audit = cluster.admin(node).post("/v1/audit", {}, AuditReport)
    report = cluster.report(node)
    found = list(audit.differences)
    held = {
        "pins": audit.pins,
        "reservations": audit.in_flight,
        "quarantined entries": audit.quarantined,
        "fills": audit.fills,
        "request-scoped entries": audit.request_scoped,
        "tasks with peers": report["peers"]["filling"],
        "bytes in flight from peers": report["peers"]["in_flight_bytes"],
        "bytes of requests": report["connection_bytes"],
        "internal errors": report["internal_errors"],
        "peers that are away": NUM_NODES - 1 - len(report["peers"]["up"]),
    }
    found += [f"{count} {what} at the end" for what, count in held.items() if count]
    return [f"{node.name}: {each}" for each in found]


@contextmanager
def _logged(world: World, wrong: list[str]) -> Iterator[None]:
    """An ERROR that our code logs is one."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not world.scheduler.is_over:
                text = logging.Formatter().format(record)
                wrong.append(f"{world.scheduler.current.name} logged: {text}")

    handler = Handler(logging.ERROR)
    logger = logging.getLogger(PACKAGE)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
