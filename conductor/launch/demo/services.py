"""What the demo asks of the workers, the stores and the Conductor beside the chat itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from moontide.kvstore import Group
from moontide.kvstore.membership import StoreRecord, WorkerRecord, open_membership

from ..errors import TimedOut
from ..plan import Plan
from .client import call
from .report import StoreTraffic

_SETTLE_SECONDS = 30.0
_POLL_SECONDS = 0.05


class _TokenizerDocument(msgspec.Struct, frozen=True):
    model: str
    block_tokens: int
    layout: list[Group]


class _Tier(msgspec.Struct, frozen=True):
    entries: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    flushed: int = 0


class _Transport(msgspec.Struct, frozen=True):
    bytes_in: int = 0
    bytes_out: int = 0


class _Peers(msgspec.Struct, frozen=True):
    up: list[str] = []
    indexed_blocks: int = 0


class StoreStats(msgspec.Struct, frozen=True):
    """The part of a store's counters that the demo needs."""

    in_flight: int
    peers: _Peers = _Peers()
    tiers: dict[str, _Tier] = {}
    transports: dict[str, _Transport] = {}

    def tier(self, name: str) -> _Tier:
        return self.tiers.get(name, _Tier())

    def transport(self, name: str) -> _Transport:
        return self.transports.get(name, _Transport())

    @property
    def unflushed(self) -> int:
        """Entries of the DRAM tier that are not on NVMe yet."""
        dram = self.tier("dram")
        return dram.entries - dram.flushed


class _Usable(msgspec.Struct, frozen=True):
    id: str
    instance: str
    usable: bool


class _Followed(msgspec.Struct, frozen=True):
    id: str
    instance: str
    events: str


class _ClusterStatus(msgspec.Struct, frozen=True):
    workers: list[_Usable]
    stores: list[_Followed]


class Services:
    """All of one cluster; made when its workers take work."""

    def __init__(self, plan: Plan, token: str) -> None:
        self.plan = plan
        self._token = token
        url = plan.workers[0].url
        document = call(url, "GET", "/v1/tokenizer", _TokenizerDocument, token=token)
        self.model = document.model
        self.block_tokens = document.block_tokens
        self.kv_token_bytes = sum(
            group.num_layers * group.num_kv_heads * group.head_bytes(1) for group in document.layout
        )

    def node_of(self, worker: str) -> str:
        return next(known.node for known in self.plan.workers if known.id == worker)

    def stats(self) -> dict[str, StoreStats]:
        """Of each node's store."""
        return {
            node.id: call(node.admin, "GET", "/v1/stats", StoreStats, token=self._token)
            for node in self.plan.nodes
        }

    def empty_engine_caches(self) -> None:
        """The workers forget the blocks they hold themselves; those in the stores stay."""
        for worker in self.plan.workers:
            call(worker.url, "POST", "/v1/cache/clear", msgspec.Raw, token=self._token)

    def empty_stores(self, *nodes: str) -> None:
        """In every tier; without names, those of all nodes."""
        for node in self.plan.nodes:
            if not nodes or node.id in nodes:
                this = {"nodes": "this"}
                call(node.admin, "POST", "/v1/clear", msgspec.Raw, token=self._token, fields=this)

    def settle(self) -> None:
        """Wait until everything the workers store has been committed. Raises TimedOut."""
        _until(lambda: all(s.in_flight == 0 for s in self.stats().values()), "stores still run")

    def flush(self) -> None:
        """Wait until all that lies in DRAM lies on NVMe too. Raises TimedOut."""
        _until(
            lambda: not any(s.unflushed for s in self.stats().values()),
            "entries still wait to be written to NVMe",
        )

    def await_known(self, source: str, node: str) -> None:
        """Wait until `node` knows all that `source` has on NVMe. Raises TimedOut."""

        def is_known() -> bool:
            stats = self.stats()
            return stats[node].peers.indexed_blocks >= stats[source].tier("nvme").entries

        _until(is_known, f"{node} does not know what {source} has")

    def drop_page_cache(self) -> None:
        """The kernel forgets what it cached of the stores' files, so that reads reach the disk."""
        for node in self.plan.nodes:
            for path in sorted(node.data_dir.rglob("*")):
                if path.is_file():
                    _drop_cached_pages(path)

    def await_joined(self) -> None:
        """Wait until each worker knows its node's store as it is now, stores each other, and the
        Conductor all of them. Raises TimedOut."""
        _until(self._is_joined, "workers, stores and Conductor do not all know each other")

    def _is_joined(self) -> bool:
        members = open_membership(f"file:{self.plan.run_dir / 'cluster'}").members()
        records = [member.record for member in members]
        stores = {r.id: r.instance for r in records if isinstance(r, StoreRecord)}
        workers = {r.id: r for r in records if isinstance(r, WorkerRecord)}
        if {worker.id for worker in self.plan.workers} != set(workers):
            return False
        attached = all(w.store_instance == stores.get(w.node) for w in workers.values())
        linked = all(len(s.peers.up) == len(stores) - 1 for s in self.stats().values())
        return (
            attached
            and linked
            and self._conductor_knows(
                stores, {worker.id: worker.instance for worker in workers.values()}
            )
        )

    def _conductor_knows(self, stores: Mapping[str, str], workers: Mapping[str, str]) -> bool:
        known = call(self.plan.conductor.url, "GET", "/v1/cluster", _ClusterStatus)
        usable = {worker.id: worker.instance for worker in known.workers if worker.usable}
        followed = {store.id: store.instance for store in known.stores if store.events == "live"}
        return usable == workers and followed == stores


def traffic(before: StoreStats, after: StoreStats) -> StoreTraffic:
    """What a store moved between the two."""

    def tier(name: str, way: Callable[[_Tier], int]) -> int:
        return way(after.tier(name)) - way(before.tier(name))

    def transport(name: str, way: Callable[[_Transport], int]) -> int:
        return way(after.transport(name)) - way(before.transport(name))

    return StoreTraffic(
        dram_entries_before=before.tier("dram").entries,
        nvme_entries_before=before.tier("nvme").entries,
        dram_bytes_in=tier("dram", lambda t: t.bytes_in),
        dram_bytes_out=tier("dram", lambda t: t.bytes_out),
        nvme_bytes_out=tier("nvme", lambda t: t.bytes_out),
        tcp_bytes_in=transport("tcp", lambda t: t.bytes_in),
        tcp_bytes_out=transport("tcp", lambda t: t.bytes_out),
        file_bytes_in=transport("file", lambda t: t.bytes_in),
    )


def _until(reached: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise TimedOut(f"{otherwise} after {_SETTLE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


def _drop_cached_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
