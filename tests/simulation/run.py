"""One seed from start to end, and all that is checked."""

from __future__ import annotations

import gc
import logging
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moontide.kvstore.store import AuditReport

from .cluster import Cluster, Node
from .history import History
from .machine.scheduler import START_SECONDS
from .machine.world import World
from .replicated import Replicated
from .trouble import Trouble
from .visitors import Visitors

PACKAGE = "moontide"
NUM_NODES = 3
SECONDS = 5.0
"""Of trouble, unless told otherwise."""
COLLECTIONS = 3
"""Coroutines of killed daemons are closed by the first, and what they held goes with the next."""
QUIET_SECONDS = 12.0
"""After the last trouble, for leases, pins and retries to end."""
CALM_SECONDS = 6.0
"""Of these, until a replica is surely made of what is put."""


@dataclass
class Outcome:
    """`wrong` is empty when all was well."""

    seed: int
    digest: str
    seconds: float  # simulated
    switches: int
    counts: dict[str, int]
    troubles: list[str]
    wrong: list[str]


def run_seed(seed: int, *, seconds: float = SECONDS) -> Outcome:
    outcome = _run(seed, seconds)
    for _ in range(COLLECTIONS):
        gc.collect()
    outcome.wrong += _still_mapped()
    return outcome


def _run(seed: int, seconds: float) -> Outcome:
    world, history = World(seed), History()
    wrong: list[str] = []
    troubles: list[str] = []
    with tempfile.TemporaryDirectory(prefix="moontide-") as folder, _logged(world, wrong):
        with world.entered():
            try:
                _live(world, Path(folder), history, troubles, wrong, seconds)
            except Exception as error:  # noqa: BLE001  # told with the seed
                wrong.append("".join(traceback.format_exception(error)))
            digest, ended = world.scheduler.digest.hexdigest(), world.now
        wrong += world.scheduler.errors
        wrong += history.wrong()
    return Outcome(
        seed=seed,
        digest=digest,
        seconds=ended - START_SECONDS,
        switches=world.scheduler.switches,
        counts=dict(history.counts),
        troubles=troubles,
        wrong=wrong,
    )


def _live(
    world: World,
    folder: Path,
    history: History,
    troubles: list[str],
    wrong: list[str],
    seconds: float,
) -> None:
    cluster = Cluster(world, folder, NUM_NODES)
    for node in cluster.nodes:
        cluster.start(node)
    visitors = Visitors(world, cluster, history, ends_at=world.now + seconds)
    trouble = Trouble(world, cluster, visitors)
    try:
        trouble.make(world.now + seconds)
        visitors.await_end()
    finally:
        troubles += trouble.log
        wrong += visitors.failures
    replicated = Replicated(cluster, world.rng.choice(cluster.nodes))
    world.scheduler.sleep(CALM_SECONDS)
    wrong += replicated.put()
    world.scheduler.sleep(QUIET_SECONDS - CALM_SECONDS)
    for node in cluster.nodes:
        wrong += _left_over(cluster, node)
    cluster.kill(replicated.node)
    wrong += replicated.read_at_others()
    for node in cluster.nodes:
        if node.is_up:
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


def _still_mapped() -> list[str]:
    """Pools of daemons go with their world."""
    count = Path("/proc/self/maps").read_text().count("memfd:moontide")
    return [f"{count} mappings of pools are left"] if count else []


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
