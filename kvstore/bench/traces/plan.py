"""A recorded trace of requests: what of its blocks a policy keeps, alone and in a daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...store.eviction import EvictionName
from ...types import Tier
from ..report import Report, Row, Spread, load_average
from ..rounds import Say
from .daemon_replay import DaemonReplayed, DaemonSizes, replay_through_daemon
from .replay import Replayed, replay_policy
from .trace import TraceRequest, read_trace

Through = Literal["policy", "daemon"]


@dataclass(frozen=True, slots=True)
class TracePlan:
    """`through`: the policy's own classes over as many blocks as both tiers hold, or a daemon."""

    trace: Path
    policies: tuple[EvictionName, ...]
    sizes: DaemonSizes
    through: tuple[Through, ...]
    directory: Path | None

    def rows(self, say: Say) -> Iterator[Row]:
        requests = read_trace(self.trace)
        for policy in self.policies:
            if "policy" in self.through:
                say(f"{policy} over {len(requests)} requests")
                yield self._alone(requests, policy)
            if "daemon" in self.through:
                say(f"{policy} in a daemon over {len(requests)} requests")
                yield self._through_daemon(requests, policy)

    def _alone(self, requests: Sequence[TraceRequest], policy: EvictionName) -> Row:
        capacity = self.sizes.dram_blocks + self.sizes.nvme_blocks
        replayed = replay_policy(requests, policy, capacity)
        return Row(case=f"trace, {policy} alone, {capacity} blocks", ours=_hits(replayed))

    def _through_daemon(self, requests: Sequence[TraceRequest], policy: EvictionName) -> Row:
        done = replay_through_daemon(requests, policy, self.sizes, self.directory)
        blocks = f"{self.sizes.dram_blocks} DRAM + {self.sizes.nvme_blocks} NVMe blocks"
        return Row(
            case=f"trace, {policy} in a daemon, {blocks}",
            ours={**_hits(done.replayed), "seconds": Spread.of([done.seconds])},
            note=_held(done),
        )


def run_trace(plan: TracePlan, say: Say) -> Report:
    """Raises InvalidRequest for what is no trace, CommandFailed when a daemon fails."""
    rows = list(plan.rows(say))
    return Report.of(rows, {"trace": plan.trace.name, "load_after": load_average()})


def _hits(replayed: Replayed) -> dict[str, Spread]:
    halves = {"": replayed.whole, "_first_half": replayed.first, "_second_half": replayed.second}
    ratios = {f"hit_ratio{name}": Spread.of([half.hit_ratio]) for name, half in halves.items()}
    return {**ratios, "prefill_saved_ratio": Spread.of([replayed.whole.saved_ratio])}


def _held(done: DaemonReplayed) -> str:
    tiers = (Tier.DRAM, Tier.NVME)
    most = ", ".join(f"{done.most_blocks[tier]} in {tier.value}" for tier in tiers)
    loaded = ", ".join(f"{done.loaded[tier]} from {tier.value}" for tier in tiers)
    return f"at most {most}; loaded {loaded}"
