"""One run: its processes, its cases one after the other, its report."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ...service import CommandFailed, SettingsError, Size
from ..contestants import Contestant, ContestantFailed, driver_command
from ..drivers.transfer.raw import VARIANTS
from ..report import Report, Row, load_average
from ..rounds import OURS, Contestants, Say
from .cases import AREA_BYTES, Case, Grid
from .layers import layer_rows
from .peers import PEERS
from .rows import RAW, transfer_row

SLICES = "slices"
LAYERS = "layers"
GROUPS = (SLICES, LAYERS)


@dataclass(frozen=True, slots=True)
class Plan:
    groups: tuple[str, ...]  # of GROUPS
    against: tuple[str, ...]
    grid: Grid
    rounds: int
    round_seconds: float
    peer_dir: Path


def run_plan(plan: Plan, say: Say) -> Report:
    """Raises CommandFailed when our own side cannot run, SettingsError when no case fits."""
    settings = {
        "rounds": str(plan.rounds),
        "round_seconds": f"{plan.round_seconds:g}",
        "order": "reversed from round to round",
        "load_before": load_average(),
    }
    rows = []
    with tempfile.TemporaryDirectory(prefix="moontide-bench-") as name:
        if SLICES in plan.groups:
            rows += _slice_rows(plan, Path(name), settings, say)
        if LAYERS in plan.groups:
            rows += layer_rows(Path(name), plan.rounds, plan.round_seconds, say)
    settings["load_after"] = load_average()
    return Report.of(rows, settings)


def _slice_rows(plan: Plan, directory: Path, settings: dict[str, str], say: Say) -> list[Row]:
    """Every case of the grid. What they were measured with is added to `settings`."""
    cases = list(plan.grid.cases())
    if not cases:
        least = min(case.bytes_in_flight for case in plan.grid.combinations())
        raise SettingsError(
            f"slices × batch × threads is {Size(least)} in the smallest case, of at most "
            f"{Size(AREA_BYTES)}: lower --sizes, --batches or --threads"
        )
    num_left_out = sum(1 for _ in plan.grid.combinations()) - len(cases)
    if num_left_out:
        say(f"left out, as their calls need more than {Size(AREA_BYTES)}: {num_left_out} cases")
    area_bytes = max(case.bytes_in_flight for case in cases)
    settings["area"] = str(Size(area_bytes))
    with Contestants(say) as contestants:
        try:
            _enter_all(contestants, plan, directory, area_bytes)
            settings |= {f"version {name}": told for name, told in contestants.versions.items()}
            return [_measure(contestants, plan, case, say) for case in cases]
        except ContestantFailed as error:
            raise CommandFailed(str(error)) from error


def _enter_all(contestants: Contestants, plan: Plan, directory: Path, area_bytes: int) -> None:
    begin = {"area_bytes": area_bytes}

    def enter(name: str, module: str, **settings: str) -> None:
        log = directory / f"{name}.log"
        contestant = Contestant(name, driver_command(f"transfer.{module}"), log)
        contestants.enter(contestant, begin | settings)

    enter(OURS, "ours")
    for variant in VARIANTS:
        enter(RAW + variant, "raw", variant=variant)
    enter("memcpy", "memcpy")
    for name in plan.against:
        directories = {"peers": plan.peer_dir, "logs": directory}
        contestants.enter_peer(name, PEERS[name], directories, begin)


def _measure(contestants: Contestants, plan: Plan, case: Case, say: Say) -> Row:
    """A round to warm up, then those that count."""
    say(f"{case.name}, {Size(case.size_bytes)} × {case.batch}")
    request = case.request(plan.round_seconds)
    answers = contestants.rounds(plan.rounds + 1, lambda *_: request)
    return transfer_row(case, {name: given[1:] for name, given in answers.items()})
