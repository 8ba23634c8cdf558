"""One run: its processes, its cases one after the other, its report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...service import CommandFailed, SettingsError, Size
from ..contestants import Contestant, ContestantFailed, driver_command
from ..drivers.store.kills import NODES, bytes_on_each_node
from ..drivers.store.timing import RING_CALLS
from ..report import Report, Row, load_average, shared_huge_pages
from ..rounds import LIMIT, OURS, Contestants, Say
from .burst import Burst
from .cases import Budget, Case, Checksums, area_bytes, call_cases
from .daemon import running_daemon
from .full_pool import full_pool_rows
from .killed import PEERS as KILLED_PEERS
from .killed import Killed
from .many_entries import FILL_BATCH, SMALL_BYTES, ManyEntries
from .measuring import measure
from .peers import PEERS
from .remote import PEERS as REMOTE_PEERS
from .remote import remote_cases, remote_rows
from .rows import call_row

CALL_GROUPS = ("single", "batch", "view", "cold")
OWN_COURSE = ("remote", "many", "full", "nvme", "killed")
OF_OWN_DAEMONS = frozenset({"nvme", "killed"})


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
    watch_seconds: float  # after a kill
    peer_dir: Path
    directory: Path | None

    def remote_cases(self) -> list[Case]:
        return list(remote_cases(self.sizes)) if "remote" in self.groups else []

    def call_cases(self) -> list[Case]:
        return [case for case in call_cases(self.sizes) if case.group in self.groups]

    def area_bytes(self) -> int:
        fill = RING_CALLS * FILL_BATCH * SMALL_BYTES
        cases = [*self.call_cases(), *self.remote_cases()]
        return max(area_bytes(cases), self.largest_bytes, fill)

    def check(self) -> None:
        """Raises SettingsError."""
        pool = f"two thirds of the pool of {Size(self.budget.pool_bytes)}: raise --dram"
        for case in [*self.call_cases(), *self.remote_cases()]:
            if case.call_bytes > self.budget.keep_bytes:
                raise SettingsError(
                    f"{case.batch} values of {Size(case.size_bytes)} are more than {pool} or "
                    "lower --sizes"
                )
        if "full" in self.groups and self.largest_bytes > self.budget.keep_bytes:
            raise SettingsError(
                f"--case full puts values of {Size(self.largest_bytes)}, more than {pool}"
            )
        on_each = bytes_on_each_node(self.watch_seconds)
        if "killed" in self.groups and on_each * NODES > self.budget.keep_bytes:
            raise SettingsError(
                f"--case killed puts {Size(on_each)} on each of {NODES} nodes, together more than "
                f"{pool}"
            )

    def settings(self) -> dict[str, str]:
        settings = {
            "rounds": str(self.budget.rounds),
            "pool": str(Size(self.budget.pool_bytes)),
            "order": "reversed from round to round",
            "threads": "OMP, OPENBLAS and MKL 1",
            "huge_pages": shared_huge_pages(),
        }
        return settings | ({"keys": str(self.num_keys)} if "many" in self.groups else {})


def run_plan(plan: Plan, say: Say) -> Report:
    """Raises CommandFailed when our own side or the limits cannot run, SettingsError when the pool
    is too small."""
    plan.check()
    settings = {**plan.settings(), "load_before": load_average()}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="moontide-bench-", dir=plan.directory) as name:
        directory = Path(name)
        try:
            versions: dict[str, str] = {}
            if set(plan.groups) - OF_OWN_DAEMONS:
                in_pool, versions = _measure_pool(plan, directory, say)
                rows += in_pool
            if "killed" in plan.groups:
                killed = _killed(plan, directory, say)
                rows += killed.rows()
                versions |= killed.versions
            settings |= {f"version {name}": text for name, text in versions.items()}
            if "nvme" in plan.groups:
                (directory / "nvme").mkdir()
                say("nvme")
                rows += Burst(
                    directory / "nvme", plan.nvme_dram_bytes, plan.budget.rounds, say
                ).rows()
        except ContestantFailed as error:
            raise CommandFailed(str(error)) from error
    settings["load_after"] = load_average()
    return Report.of(rows, settings)


def _killed(plan: Plan, directory: Path, say: Say) -> Killed:
    return Killed(
        directory,
        plan.budget.pool_bytes // NODES,
        plan.budget.rounds,
        plan.watch_seconds,
        {name: plan.peer_dir for name in plan.against if name in KILLED_PEERS},
        say,
    )


def _measure_pool(plan: Plan, directory: Path, say: Say) -> tuple[list[Row], dict[str, str]]:
    """Rows, and the versions of those who are in them."""
    rows: list[Row] = []
    versions: dict[str, str] = {}
    with running_daemon(directory, "--dram", str(plan.budget.pool_bytes)) as daemon:
        begin = {
            **daemon.settings(),
            "pool_bytes": plan.budget.pool_bytes,
            "area_bytes": plan.area_bytes(),
            "touch": True,
            "checksums": "on",
        }
        if "remote" in plan.groups:
            remote, versions = remote_rows(
                plan.remote_cases(),
                plan.budget,
                daemon,
                begin,
                directory=directory,
                peers={name: plan.peer_dir for name in plan.against if name in REMOTE_PEERS},
                say=say,
            )
            rows += remote
        if set(plan.groups) - {"remote"} - OF_OWN_DAEMONS:
            local, more = _measure_local(plan, directory, begin, say)
            rows += local
            versions |= more
    return rows, versions


def _measure_local(
    plan: Plan, directory: Path, begin: Mapping[str, Any], say: Say
) -> tuple[list[Row], dict[str, str]]:
    """As `_measure_pool`, of clients on the daemon's node."""
    rows: list[Row] = []
    with Contestants(say) as contestants:
        _enter_all(contestants, plan, directory, begin)
        versions = contestants.versions
        rows += _call_rows(contestants, plan, "on", say)
        if "many" in plan.groups:
            say(f"{plan.num_keys} entries")
            rows += ManyEntries(contestants, plan.budget, plan.num_keys).rows()
        if "full" in plan.groups:
            say("a full pool")
            rows += full_pool_rows(contestants, plan.budget, plan.largest_bytes)
        if any(case.checksums == "off" for case in plan.call_cases()):
            contestants.enter(_ours(directory), {**begin, "checksums": "off"})
            rows += _call_rows(contestants, plan, "off", say)
    return rows, versions


def _call_rows(
    contestants: Contestants, plan: Plan, checksums: Checksums, say: Say
) -> Iterator[Row]:
    for case in plan.call_cases():
        if case.checksums == checksums:
            say(f"{case.name}, {Size(case.size_bytes)} × {case.batch}")
            yield call_row(case, measure(contestants, case, plan.budget))


def _enter_all(
    contestants: Contestants, plan: Plan, directory: Path, begin: Mapping[str, Any]
) -> None:
    contestants.enter(_ours(directory), begin)
    contestants.enter(
        Contestant(LIMIT, driver_command("store.limits"), directory / "limits.log"), begin
    )
    directories = {"peers": plan.peer_dir, "logs": directory}
    for name in plan.against:
        contestants.enter_peer(name, PEERS[name], directories, begin)


def _ours(directory: Path) -> Contestant:
    return Contestant(OURS, driver_command("store.ours"), directory / "ours.log")
