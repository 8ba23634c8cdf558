"""`moontide bench store`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from ...service import SettingsError, guarded, json_file_flag
from ...store.eviction import POLICIES, EvictionName
from ..flags import check_effect, given_flags, peer_dir_flag, rounds_flag, size_of, sizes_of
from ..peers import chosen_peers, default_peer_dir
from ..table import show
from ..traces.daemon_replay import DaemonSizes
from ..traces.plan import TracePlan, run_trace
from .cases import SIZES, Budget, MiB
from .killed import QUICK_WATCH_SECONDS, WATCH_SECONDS
from .many_entries import whole_keys
from .peers import PEERS
from .plan import CALL_GROUPS, OWN_COURSE, Plan, run_plan

QUICK_SIZES = (SIZES[0], SIZES[2], SIZES[4])
QUICK_KEYS = 100_000
QUICK_ROUNDS = 3
LARGEST_MIXED_BYTES = 64 * MiB
LEAST_POOL_BYTES = 32 * MiB
FLAGS_OF_TRACE = frozenset({"policies", "dram_blocks", "nvme_blocks", "through"})
FLAGS_OF_BOTH = frozenset({"trace", "directory", "json_file"})
CASES = (*CALL_GROUPS, *OWN_COURSE)
IN_POOL = tuple(case for case in CASES if case != "nvme")
CASES_OF_FLAG: Mapping[str, Collection[str]] = {
    "against": IN_POOL,
    "peer_dir": IN_POOL,
    "dram": IN_POOL,
    "sizes": (*CALL_GROUPS, "remote"),
    "keys": ("many",),
    "nvme_dram": ("nvme",),
}
"""Which cases a flag has an effect on, where not on all."""
DEFAULT_POLICIES: tuple[EvictionName, ...] = ("lru", "slru", "cost_aware")


@click.command()
@click.option("--against", default="", help=f"Peers to measure too: {','.join(PEERS)}")
@click.option(
    "--case",
    "groups",
    multiple=True,
    type=click.Choice(CASES),
    help="Only these; may be repeated",
)
@click.option("--sizes", default="", help="Of values, as 4KiB,1MiB; not given: 4 KiB to 16 MiB")
@rounds_flag
@click.option(
    "--keys",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(100, 10_000_000),
    help="Entries of the case many",
)
@click.option("--dram", default="1536MiB", show_default=True, help="Pool of every contestant")
@click.option("--nvme-dram", default="256MiB", show_default=True, help="Pool of the NVMe case")
@click.option("--quick", is_flag=True, help="Fewer sizes, rounds and keys: about two minutes")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Replay this trace of requests instead",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(POLICIES)),
    help=f"Of a trace; may be repeated; {', '.join(DEFAULT_POLICIES)} unless given",
)
@click.option(
    "--dram-blocks",
    default=3000,
    show_default=True,
    type=click.IntRange(1024),
    help="Of a trace, that the DRAM tier holds",
)
@click.option(
    "--nvme-blocks",
    default=27000,
    show_default=True,
    type=click.IntRange(0),
    help="Of a trace, that the NVMe tier holds; 0: no such tier",
)
@click.option(
    "--through",
    multiple=True,
    default=("policy", "daemon"),
    type=click.Choice(["policy", "daemon"]),
    help="Of a trace: the policy alone, over as many blocks as both tiers hold, or a daemon; "
    "both unless given",
)
@peer_dir_flag
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False, writable=True),
    help="Of daemons' data; on the disk measured",
)
@json_file_flag
def store(json_file: Path | None, **flags: Any) -> None:
    """The store beside Mooncake, Redis and LMCache, and beside memcpy and the disk; interleaved."""

    def run() -> int:
        _check_effect_of_trace(flags["trace"] is not None)
        check_effect(CASES_OF_FLAG, flags["groups"] or CASES)
        report = (
            run_trace(_trace_plan(flags), _say) if flags["trace"] else run_plan(_plan(flags), _say)
        )
        show(report)
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench store", run))


def _check_effect_of_trace(is_replayed: bool) -> None:
    """Raises SettingsError naming a flag that was given and would have no effect."""
    relation = "beside" if is_replayed else "without"
    for name, flag in given_flags():
        if name not in FLAGS_OF_BOTH and (name in FLAGS_OF_TRACE) != is_replayed:
            raise SettingsError(f"{flag} has no effect {relation} --trace: leave it out")


def _plan(flags: Mapping[str, Any]) -> Plan:
    """Of the command's flags. Raises SettingsError."""
    rounds, keys = flags["rounds"], flags["keys"]
    pool_bytes = size_of("--dram", flags["dram"], LEAST_POOL_BYTES)
    if flags["quick"]:
        rounds, keys = min(rounds, QUICK_ROUNDS), min(keys, QUICK_KEYS)
    sizes = QUICK_SIZES if flags["quick"] else SIZES
    return Plan(
        against=chosen_peers(flags["against"], PEERS, flags["peer_dir"]),
        groups=flags["groups"] or CASES,
        sizes=sizes_of("--sizes", flags["sizes"], pool_bytes) or sizes,
        budget=Budget(rounds=rounds, pool_bytes=pool_bytes),
        num_keys=whole_keys(keys),
        watch_seconds=QUICK_WATCH_SECONDS if flags["quick"] else WATCH_SECONDS,
        nvme_dram_bytes=size_of("--nvme-dram", flags["nvme_dram"], LEAST_POOL_BYTES),
        largest_bytes=LARGEST_MIXED_BYTES,
        peer_dir=flags["peer_dir"] or default_peer_dir(),
        directory=flags["directory"],
    )


def _trace_plan(flags: Mapping[str, Any]) -> TracePlan:
    return TracePlan(
        trace=flags["trace"],
        policies=flags["policies"] or DEFAULT_POLICIES,
        sizes=DaemonSizes(flags["dram_blocks"], flags["nvme_blocks"]),
        through=flags["through"],
        directory=flags["directory"],
    )


def _say(text: str) -> None:
    click.echo(f"moontide bench store: {text}", err=True)
