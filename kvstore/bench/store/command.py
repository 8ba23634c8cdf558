"""`moontide bench store`."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from ...service import CommandFailed, Size, guarded
from ..report import Report, Row
from .cases import SIZES, Case, Limits, MiB, area_bytes, call_cases
from .contestants import Contestant, ContestantFailed, driver_command
from .daemon import Daemon, running_daemon
from .peers import PEERS, default_peer_dir
from .rounds import LIMIT, OURS, Field, measure
from .rows import call_row
from .special import FILL_BATCH, SMALL_BYTES, Burst, ManyEntries, full_pool_rows
from .table import show

CALL_GROUPS = ("single", "batch", "view", "cold")
OWN_COURSE = ("many", "full", "nvme")
QUICK_SIZES = (SIZES[0], SIZES[2], SIZES[4])
QUICK_KEYS = 100_000
QUICK_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    against: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    limits: Limits
    num_keys: int
    nvme_dram_bytes: int
    largest_bytes: int
    peer_dir: Path
    directory: Path | None

    def call_cases(self) -> list[Case]:
        return [case for case in call_cases(self.sizes) if case.group in self.groups]

    def check(self) -> None:
        """Raises CommandFailed."""
        for case in self.call_cases():
            if case.size_bytes * case.batch > self.limits.keep_bytes:
                raise CommandFailed(
                    f"{case.batch} values of {Size(case.size_bytes)} are more than two thirds of "
                    f"the pool of {Size(self.limits.pool_bytes)}: raise --dram or lower --sizes"
                )

    def settings(self) -> dict[str, str]:
        return {
            "rounds": str(self.limits.rounds),
            "pool": str(Size(self.limits.pool_bytes)),
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
                    directory / "nvme", plan.nvme_dram_bytes, plan.limits.rounds, _say
                ).rows()
        except ContestantFailed as error:
            raise CommandFailed(str(error)) from error
    settings["load_after"] = _load()
    return Report.of(rows, settings)


def _pool_rows(plan: Plan, directory: Path, settings: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    cases = plan.call_cases()
    dram = ("--dram", str(plan.limits.pool_bytes))
    with running_daemon(directory, *dram) as daemon, Field(_say) as field:
        _enter_all(field, plan, daemon, directory)
        settings.update({f"version {name}": text for name, text in field.versions.items()})
        for case in cases:
            _say(f"{case.name}, {Size(case.size_bytes)} × {case.batch}")
            rows.append(call_row(case, measure(field, case, plan.limits)))
        if "many" in plan.groups:
            _say(f"{plan.num_keys} entries")
            rows += ManyEntries(field, plan.limits, plan.num_keys).rows()
        if "full" in plan.groups:
            _say("a full pool")
            rows += full_pool_rows(field, plan.limits, plan.largest_bytes)
    return rows


def _enter_all(field: Field, plan: Plan, daemon: Daemon, directory: Path) -> None:
    settings = {
        "pool_bytes": plan.limits.pool_bytes,
        "area_bytes": max(
            area_bytes(plan.call_cases()), plan.largest_bytes, 8 * FILL_BATCH * SMALL_BYTES
        ),
        "touch": True,
    }
    own = {**settings, "address": daemon.address, "daemon_pid": daemon.pid}
    field.enter(Contestant(OURS, driver_command("ours"), directory / "ours.log"), own)
    field.enter(Contestant(LIMIT, driver_command("limits"), directory / "limits.log"), settings)
    directories = {"peers": plan.peer_dir, "logs": directory}
    for name in plan.against:
        _say(f"starting {name}")
        field.enter_peer(name, directories, settings)


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
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--keys", default=1_000_000, show_default=True, type=click.IntRange(100, 10_000_000))
@click.option("--dram", default="1536MiB", show_default=True, help="Pool of every contestant")
@click.option("--nvme-dram", default="256MiB", show_default=True, help="Pool of the NVMe case")
@click.option("--quick", is_flag=True, help="Fewer sizes, rounds and keys: about two minutes")
@click.option(
    "--peer-dir", type=click.Path(path_type=Path), help="Where peers are installed [~/.cache]"
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Of the daemon's data; on the disk measured",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report here")
def store(
    against: str,
    groups: tuple[str, ...],
    sizes: str,
    rounds: int,
    keys: int,
    dram: str,
    nvme_dram: str,
    quick: bool,
    peer_dir: Path | None,
    directory: Path | None,
    json_file: Path | None,
) -> None:
    """The store beside Mooncake, Redis and LMCache, and beside memcpy and the disk; interleaved."""

    def run() -> int:
        plan = Plan(
            against=_peers(against),
            groups=groups or (*CALL_GROUPS, *OWN_COURSE),
            sizes=_sizes(sizes) or (QUICK_SIZES if quick else SIZES),
            limits=Limits(
                rounds=min(rounds, QUICK_ROUNDS) if quick else rounds,
                pool_bytes=_size(dram),
            ),
            num_keys=min(keys, QUICK_KEYS) if quick else keys,
            nvme_dram_bytes=_size(nvme_dram),
            largest_bytes=64 * MiB,
            peer_dir=peer_dir or default_peer_dir(),
            directory=directory,
        )
        report = run_plan(plan)
        show(report)
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench store", run))


def _peers(against: str) -> tuple[str, ...]:
    names = tuple(name for name in against.split(",") if name)
    for name in names:
        if name not in PEERS:
            raise CommandFailed(f"--against names {name!r}; known are {', '.join(PEERS)}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(size) for size in text.split(",") if size)


def _size(text: str) -> int:
    try:
        return int(Size.parse(text))
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _say(text: str) -> None:
    click.echo(f"moontide bench store: {text}", err=True)
