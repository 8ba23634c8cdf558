"""Rows of layer streams: many blocks, layer by layer, beside the same bytes in one batch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...service import CommandFailed
from ..contestants import Contestant, ContestantFailed, driver_command
from ..report import GIGABYTE, MICROSECONDS, Row, Spread, ratio_interval
from ..rounds import OURS, Contestants, Say
from .cases import KiB

VIAS = ("shm", "tcp")
BLOCKS = 16
LAYERS = 32
LAYER_BYTES = 128 * KiB
TOTAL_BYTES = BLOCKS * LAYERS * LAYER_BYTES
FIRST_SHARE = 1.3 / LAYERS
FIRST_SECONDS = 0.002
"""The first layer of all blocks is to be there after that share of the whole, and that long."""

Pair = Mapping[str, Mapping[str, float]]
"""Seconds of a streamed transfer and of an unstreamed one, next to each other in time."""


def layer_rows(directory: Path, rounds: int, round_seconds: float, say: Say) -> list[Row]:
    """One for each transport. Raises CommandFailed."""
    shape = {"blocks": BLOCKS, "layers": LAYERS, "layer_bytes": LAYER_BYTES}
    with Contestants(say) as contestants:
        log = directory / "layers.log"
        try:
            contestants.enter(Contestant(OURS, driver_command("transfer.layers"), log), shape)
            return [_measure(contestants, via, rounds, round_seconds, say) for via in VIAS]
        except ContestantFailed as error:
            raise CommandFailed(str(error)) from error


def layer_row(via: str, pairs: Sequence[Pair]) -> Row:
    """The limit is the same batch, verified once it has come; beside it, the batch alone."""
    streamed = [pair["streamed"]["whole"] for pair in pairs]
    verified = [pair["unstreamed"]["whole"] for pair in pairs]
    bare = [pair["unstreamed"]["bytes_there"] for pair in pairs]
    first = [pair["streamed"]["first"] for pair in pairs]
    of_bound = [
        seconds / (FIRST_SHARE * whole + FIRST_SECONDS)
        for seconds, whole in zip(first, streamed, strict=True)
    ]
    beside = {"limit": verified, "unverified": bare}
    ratios = {
        name: ratio_interval(list(zip(seconds, streamed, strict=True)))
        for name, seconds in beside.items()
    }
    told = (
        f"{BLOCKS} blocks of {LAYERS} layers",
        f"first layer / (1.3/{LAYERS} of the whole + 2 ms) {statistics.median(of_bound):.3g}",
    )
    intervals = (f"{name} {ratio.low:.3g}–{ratio.high:.3g}" for name, ratio in ratios.items())
    return Row(
        case=f"layer stream, {via}",
        size_bytes=TOTAL_BYTES,
        ours=_figures(streamed)
        | {"first_layer_us": Spread.of([seconds * MICROSECONDS for seconds in first])},
        limit=_figures(verified),
        peers={"unverified": _figures(bare)},
        ratio={name: ratio.median for name, ratio in ratios.items()},
        note="; ".join([*told, "limit: one batch, then verified", *intervals]),
    )


def _measure(
    contestants: Contestants, via: str, rounds: int, round_seconds: float, say: Say
) -> Row:
    """A round to warm up, then those that count."""
    say(f"layer stream, {via}")
    request = {"do": "layers", "via": via, "budget_seconds": round_seconds}
    _, *counted = contestants.rounds(rounds + 1, lambda *_: request)[OURS]
    return layer_row(via, [pair for answer in counted for pair in answer])


def _figures(seconds: Sequence[float]) -> dict[str, Spread]:
    return {
        "p50_us": Spread.of([each * MICROSECONDS for each in seconds]),
        "gb_per_s": Spread.of([TOTAL_BYTES / each / GIGABYTE for each in seconds]),
    }
