"""A trace through a real daemon: DRAM and NVMe, asked and filled by a client as an engine does.

A block of the trace becomes a block of one token, the trace's hash, with 4 KiB of KV made of that
hash and checked on each load. Requests follow each other at once. Policies go by what comes in, not
by seconds; only the disk has less time than in the trace's own hour, so after each request it may
finish what it is about to write.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moontide.transfer.types import PAGE_BYTES, align_up

from ...client import BlockStore, JobStatus, StoreClient, connect
from ...keys import Namespace
from ...layout import Group, KVLayout
from ...service import CommandFailed
from ...store.eviction import EvictionName
from ...types import Tier
from ..store.daemon import running_daemon
from .replay import Replayed, Tally
from .trace import TraceRequest

LAYOUT = KVLayout(
    (Group("full", num_layers=1, num_kv_heads=1, head_dim=PAGE_BYTES // 8, dtype="float32"),)
)
"""Key and value of one token: a page."""
MAX_SEGMENTS = 64
"""Many, as a node has: segments move between writers as wholes."""
NVME_REGIONS = 64
NVME_BLOCK_BYTES = PAGE_BYTES + 1024
"""A block on disk, with more than its share of headers, index and the region that waits: the number
of blocks is the limit."""
CALL_SECONDS = 30.0
FLUSH_SECONDS = 60.0
QUIET_LOOKS = 2
"""Between two writes nothing is copied for a moment."""
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class DaemonSizes:
    """Tiers in blocks. Without NVMe, `nvme_blocks` is 0."""

    dram_blocks: int
    nvme_blocks: int

    def flags(self) -> list[str]:
        count = max(n for n in range(1, MAX_SEGMENTS + 1) if self.dram_blocks % n == 0)
        segment = self.dram_blocks // count * PAGE_BYTES
        nvme = align_up(self.nvme_blocks * NVME_BLOCK_BYTES, PAGE_BYTES)
        region = align_up(nvme // NVME_REGIONS, PAGE_BYTES)
        flags = ["--dram", str(count * segment), "--segment", str(segment)]
        flags += ["--max-entries", str(2 * self.dram_blocks), "--nvme", str(nvme)]
        if not nvme:
            return flags
        flags += ["--nvme-region", str(region), "--nvme-entries", str(self.nvme_blocks)]
        return [*flags, "--nvme-writes", "late", "--nvme-compression", "off"]


@dataclass(frozen=True, slots=True)
class DaemonReplayed:
    """`most_blocks` is what each tier held at most, `loaded` how many blocks were read from it."""

    replayed: Replayed
    most_blocks: dict[Tier, int]
    loaded: dict[Tier, int]
    seconds: float


def replay_through_daemon(
    requests: Sequence[TraceRequest],
    policy: EvictionName,
    sizes: DaemonSizes,
    directory: Path | None = None,
) -> DaemonReplayed:
    """Starts a daemon with its data below `directory` (on the disk to be used), and ends it. Raises
    CommandFailed when it does not start, gives wrong bytes, or its disk does not keep up."""
    with tempfile.TemporaryDirectory(prefix="moontide-replay-", dir=directory) as name:
        flags = [*sizes.flags(), "--eviction", policy]
        with (
            running_daemon(Path(name), *flags) as daemon,
            connect(daemon.address, timeout_s=CALL_SECONDS) as client,
            client.kv(_namespace()) as kv,
        ):
            return _Engine(client, kv, sizes).replay(requests)


def _namespace() -> Namespace:
    return Namespace(weights_id="trace", layout=LAYOUT, tokenizer_digest="trace", block_tokens=1)


class _Engine:
    def __init__(self, client: StoreClient, kv: BlockStore, sizes: DaemonSizes) -> None:
        self._client = client
        self._kv = kv
        self._sizes = sizes
        self._most = dict.fromkeys((Tier.DRAM, Tier.NVME), 0)
        self._loaded = dict.fromkeys((Tier.DRAM, Tier.NVME), 0)

    def replay(self, requests: Sequence[TraceRequest]) -> DaemonReplayed:
        started = time.monotonic()
        halves = Tally(), Tally()
        for number, request in enumerate(requests):
            half = halves[number >= len(requests) // 2]
            hits = self._serve(request.hash_ids)
            half.add(request, hits)
            if hits < len(request.hash_ids):
                self._settle()
        seconds = time.monotonic() - started
        return DaemonReplayed(Replayed(*halves), self._most, self._loaded, seconds)

    def _serve(self, blocks: tuple[int, ...]) -> int:
        """Blocks of the longest prefix that could be loaded."""
        hits = self._load(blocks)
        if hits < len(blocks):
            with self._kv.writer(blocks, first_block=hits) as writer:
                writer.layer(0, [_bytes_of(block) for block in blocks[hits:]])
        return hits

    def _load(self, blocks: tuple[int, ...]) -> int:
        found = self._kv.lookup(blocks, pin_s=CALL_SECONDS)
        if not found.blocks:
            return 0
        buffers = [bytearray(PAGE_BYTES) for _ in found.blocks]
        try:
            result = self._kv.load(found.ticket, [0], [buffers])
        finally:
            self._kv.release(found.ticket)
        if result.status is not JobStatus.DONE and not result.failed_blocks:
            raise CommandFailed(f"a load ended as {result.status}: {result.reason}")
        hits = min(result.failed_blocks, default=len(buffers))
        for block, buffer, tier in zip(blocks[:hits], buffers, found.tiers, strict=False):
            if buffer != _bytes_of(block):
                raise CommandFailed(f"block {block} of the trace came back with other bytes")
            self._loaded[tier] += 1
        return hits

    def _settle(self) -> None:
        """Until nothing is being copied to disk; what is stays in memory as if pinned."""
        deadline = time.monotonic() + FLUSH_SECONDS
        quiet = 0
        while True:
            tiers = self._client.stats()["tiers"]
            quiet = 0 if tiers["dram"]["pinned_bytes"] else quiet + 1
            if quiet == QUIET_LOOKS:
                break
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"the disk is still writing after {FLUSH_SECONDS:g} s: is it full or broken?"
                )
            time.sleep(_POLL_SECONDS)
        for tier, most in self._most.items():
            if tier.value in tiers:
                self._most[tier] = max(most, tiers[tier.value]["entries"])


def _bytes_of(block: int) -> bytes:
    return block.to_bytes(8, "little") * (PAGE_BYTES // 8)
