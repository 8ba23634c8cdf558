"""`moontide bench store`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ...service import CommandFailed, Size, guarded
from ...store.eviction import POLICIES, EvictionName
from ..daemon_replay import DaemonSizes
from ..report import Report, Row
from .cases import SIZES, Budget, Case, Checksums, MiB, area_bytes, call_cases
from .contestants import Contestant, ContestantFailed, driver_command
from .daemon import running_daemon
from .drivers.timing import RING_CALLS
from .peers import PEERS, default_peer_dir
from .rounds import LIMIT, OURS, Field, measure
from .rows import call_row
from .special import FILL_BATCH, SMALL_BYTES, Burst, ManyEntries, full_pool_rows
from .table import show
from .traces import TracePlan

CALL_GROUPS = ("single", "batch", "view", "cold")
OWN_COURSE = ("many", "full", "nvme")
QUICK_SIZES = (SIZES[0], SIZES[2], SIZES[4])
QUICK_KEYS = 100_000
QUICK_ROUNDS = 3
LARGEST_MIXED_BYTES = 64 * MiB
DEFAULT_POLICIES: tuple[EvictionName, ...] = ("lru", "slru", "cost_aware")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    against: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    budget: Budget
    num_keys: int
    nvme_dram_bytes: int
    largest_bytes: int
    peer_dir: Path
    directory: Path | None

    def call_cases(self) -> list[Case]:
        return [case for case in call_cases(self.sizes) if case.group in self.groups]

    def area_bytes(self) -> int:
        fill = RING_CALLS * FILL_BATCH * SMALL_BYTES
        return max(area_bytes(self.call_cases()), self.largest_bytes, fill)

    def check(self) -> None:
        """Raises CommandFailed."""
        for case in self.call_cases():
            if case.call_bytes > self.budget.keep_bytes:
                raise CommandFailed(
                    f"{case.batch} values of {Size(case.size_bytes)} are more than two thirds of "
                    f"the pool of {Size(self.budget.pool_bytes)}: raise --dram or lower --sizes"
                )

    def settings(self) -> dict[str, str]:
        return {
            "rounds": str(self.budget.rounds),
            "pool": str(Size(self.budget.pool_bytes)),
            "order": "reversed from round to round",
            "threads": "OMP, OPENBLAS and MKL 1",
            "keys": str(self.num_keys),
        }


def run_plan(plan: Plan) -> Report:
    """Raises CommandFailed when our own side or the limits cannot run, or the pool is too small."""
    plan.check()
    settings = plan.settings()
    settings["load_before"] = _load()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="moontide-bench-", dir=plan.directory) as name:
        directory = Path(name)
        try:
            if set(plan.groups) - {"nvme"}:
                rows += _pool_rows(plan, directory, settings)
            if "nvme" in plan.groups:
                (directory / "nvme").mkdir()
                _say("nvme")
                rows += Burst(
                    directory / "nvme", plan.nvme_dram_bytes, plan.budget.rounds, _say
                ).rows()
        except ContestantFailed as error:
            raise CommandFailed(str(error)) from error
    settings["load_after"] = _load()
    return Report.of(rows, settings)


def _pool_rows(plan: Plan, directory: Path, settings: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    dram = ("--dram", str(plan.budget.pool_bytes))
    with running_daemon(directory, *dram) as daemon, Field(_say) as field:
        begin = {
            **daemon.settings(),
            "pool_bytes": plan.budget.pool_bytes,
            "area_bytes": plan.area_bytes(),
            "touch": True,
            "checksums": "on",
        }
        _enter_all(field, plan, directory, begin)
        settings.update({f"version {name}": text for name, text in field.versions.items()})
        rows += _call_rows(field, plan, "on")
        if "many" in plan.groups:
            _say(f"{plan.num_keys} entries")
            rows += ManyEntries(field, plan.budget, plan.num_keys).rows()
        if "full" in plan.groups:
            _say("a full pool")
            rows += full_pool_rows(field, plan.budget, plan.largest_bytes)
        if any(case.checksums == "off" for case in plan.call_cases()):
            field.enter(_ours(directory), {**begin, "checksums": "off"})
            rows += _call_rows(field, plan, "off")
    return rows


def _call_rows(field: Field, plan: Plan, checksums: Checksums) -> Iterator[Row]:
    for case in plan.call_cases():
        if case.checksums == checksums:
            _say(f"{case.name}, {Size(case.size_bytes)} × {case.batch}")
            yield call_row(case, measure(field, case, plan.budget))


def _enter_all(field: Field, plan: Plan, directory: Path, begin: Mapping[str, Any]) -> None:
    field.enter(_ours(directory), begin)
    field.enter(Contestant(LIMIT, driver_command("limits"), directory / "limits.log"), begin)
    directories = {"peers": plan.peer_dir, "logs": directory}
    for name in plan.against:
        _say(f"starting {name}")
        field.enter_peer(name, directories, begin)


def _ours(directory: Path) -> Contestant:
    return Contestant(OURS, driver_command("ours"), directory / "ours.log")


@click.command()
@click.option("--against", default="", help=f"Peers to measure too: {','.join(PEERS)}")
@click.option(
    "--case",
    "groups",
    multiple=True,
    type=click.Choice([*CALL_GROUPS, *OWN_COURSE]),
    help="Only these; may be repeated",
)
@click.option("--sizes", default="", help="Of values, as 4KiB,1MiB; not given: 4 KiB to 16 MiB")
@click.option(
    "--rounds",
    default=5,
    show_default=True,
    type=click.IntRange(1, 100),
    help="That count, of each case",
)
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
    type=click.IntRange(512),
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
@click.option(
    "--peer-dir", type=click.Path(path_type=Path), help="Where peers are installed [~/.cache]"
)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Of daemons' data; on the disk measured"
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report here")
def store(json_file: Path | None, **flags: Any) -> None:
    """The store beside Mooncake, Redis and LMCache, and beside memcpy and the disk; interleaved."""

    def run() -> int:
        report = run_trace(_trace_plan(flags)) if flags["trace"] else run_plan(_plan(flags))
        show(report)
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench store", run))


def _plan(flags: Mapping[str, Any]) -> Plan:
    """Of the command's flags. Raises CommandFailed."""
    rounds, keys = flags["rounds"], flags["keys"]
    if flags["quick"]:
        rounds, keys = min(rounds, QUICK_ROUNDS), min(keys, QUICK_KEYS)
    sizes = QUICK_SIZES if flags["quick"] else SIZES
    return Plan(
        against=_peers(flags["against"]),
        groups=flags["groups"] or (*CALL_GROUPS, *OWN_COURSE),
        sizes=tuple(_size(size) for size in flags["sizes"].split(",") if size) or sizes,
        budget=Budget(rounds=rounds, pool_bytes=_size(flags["dram"])),
        num_keys=keys,
        nvme_dram_bytes=_size(flags["nvme_dram"]),
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


def run_trace(plan: TracePlan) -> Report:
    rows = list(plan.rows(_say))
    return Report.of(rows, {"trace": plan.trace.name, "load_after": _load()})


def _peers(against: str) -> tuple[str, ...]:
    names = tuple(name for name in against.split(",") if name)
    for name in names:
        if name not in PEERS:
            raise CommandFailed(f"--against names {name!r}; known are {', '.join(PEERS)}")
    return names


def _size(text: str) -> int:
    try:
        return int(Size.parse(text))
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _say(text: str) -> None:
    click.echo(f"moontide bench store: {text}", err=True)
