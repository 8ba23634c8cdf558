"""What a benchmark does to a cluster between two requests."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from moontide.kvstore.service import CommandFailed

from .client import Client
from .processes import Cluster

_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.02


class _StoreJobs(msgspec.Struct, frozen=True):
    outstanding_jobs: int


class _WorkerStats(msgspec.Struct, frozen=True):
    store: _StoreJobs


class _Tier(msgspec.Struct, frozen=True):
    entries: int = 0
    flushed: int = 0


class _StoreStats(msgspec.Struct, frozen=True):
    in_flight: int
    tiers: dict[str, _Tier]

    @property
    def unflushed(self) -> int:
        dram = self.tiers["dram"]
        return dram.entries - dram.flushed


class Controls:
    """Raises CommandFailed when a service refuses, or does not come to rest."""

    def __init__(self, cluster: Cluster) -> None:
        token = cluster.token
        self._workers = {w.id: Client(w.url, token) for w in cluster.workers}
        self._stores = {node.id: Client(node.admin, token) for node in cluster.nodes}

    def settle(self) -> None:
        """Waits until the stores have everything that the workers offered."""
        until(self._is_settled, "store jobs still run")

    def flush(self) -> None:
        """Waits until all of it is on NVMe as well."""
        self.settle()
        until(
            lambda: not any(stats.unflushed for stats in self._store_stats()),
            "entries still wait to be written to NVMe",
        )

    def clear_engine_caches(self) -> None:
        """The workers forget their own blocks; those in the stores stay."""
        for worker in self._workers.values():
            worker.post("/v1/cache/clear", {})

    def evict_dram(self, node: str) -> None:
        """What lies on NVMe stays there."""
        self._stores[node].post("/v1/evict", {"tier": "dram"})

    def clear_store(self, node: str) -> None:
        self._stores[node].post("/v1/clear", {"nodes": "this"})

    def _is_settled(self) -> bool:
        stats = [worker.get("/v1/stats", _WorkerStats) for worker in self._workers.values()]
        jobs = sum(worker.store.outstanding_jobs for worker in stats)
        return not jobs and not any(store.in_flight for store in self._store_stats())

    def _store_stats(self) -> list[_StoreStats]:
        return [store.get("/v1/stats", _StoreStats) for store in self._stores.values()]


def until(reached: Callable[[], bool], otherwise: str) -> None:
    """Raises CommandFailed with what is the case `otherwise`, when it is not soon."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise CommandFailed(f"{otherwise} after {_SETTLE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
