"""`moontide bench transfer`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ...service import guarded, json_file_flag
from ..flags import (
    check_effect,
    counts_of,
    peer_dir_flag,
    round_seconds_flag,
    rounds_flag,
    sizes_of,
)
from ..peers import chosen_peers, default_peer_dir
from ..table import show
from .cases import (
    AREA_BYTES,
    BATCHES,
    MOST_BATCH,
    MOST_STREAMS,
    MOST_THREADS,
    OPCODES,
    SIZES,
    STREAMS,
    THREADS,
    Grid,
    KiB,
    MiB,
)
from .peers import PEERS
from .plan import GROUPS, SLICES, Plan, run_plan

QUICK = Grid(sizes=(64 * KiB, MiB, 16 * MiB), batches=(1,), threads=(1,))
QUICK_ROUNDS = 3
CASES_OF_FLAG: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("against", "opcodes", "sizes", "batches", "streams", "threads", "peer_dir"), (SLICES,)
)
"""Which cases a flag has an effect on, where not on all."""


@click.command()
@click.option(
    "--case",
    "groups",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Only these: batches of slices, layer streams; may be repeated",
)
@click.option("--against", default="", help=f"Peers to measure too: {','.join(PEERS)}")
@click.option(
    "--opcode",
    "opcodes",
    multiple=True,
    type=click.Choice(OPCODES),
    help="Only this; both unless given",
)
@click.option("--sizes", default="", help="Of slices, as 4KiB,1MiB; not given: 4 KiB to 64 MiB")
@click.option("--batches", default="", help=f"Slices of a call, as 1,32; up to {MOST_BATCH}")
@click.option("--streams", default="", help=f"Connections, as 1,2; up to {MOST_STREAMS}")
@click.option("--threads", default="", help=f"Threads that call, as 1,8; up to {MOST_THREADS}")
@rounds_flag
@round_seconds_flag
@click.option("--quick", is_flag=True, help="Fewer sizes, batches, threads and rounds")
@peer_dir_flag
@json_file_flag
def transfer(json_file: Path | None, **flags: Any) -> None:
    """The TCP transport beside NIXL, Mooncake, raw sockets and memcpy; interleaved."""

    def run() -> int:
        report = run_plan(_plan(**flags), _say)
        show(report, "gb_per_s")
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench transfer", run))


def _plan(*, against: str, quick: bool, **flags: Any) -> Plan:
    """Of the command's flags. Raises SettingsError."""
    check_effect(CASES_OF_FLAG, flags["groups"] or GROUPS)
    usual = QUICK if quick else Grid(OPCODES, SIZES, BATCHES, STREAMS, THREADS)
    return Plan(
        groups=tuple(dict.fromkeys(flags["groups"])) or GROUPS,
        against=chosen_peers(against, PEERS, flags["peer_dir"]),
        grid=Grid(
            tuple(dict.fromkeys(flags["opcodes"])) or usual.opcodes,
            sizes_of("--sizes", flags["sizes"], AREA_BYTES) or usual.sizes,
            counts_of("--batches", flags["batches"], MOST_BATCH) or usual.batches,
            counts_of("--streams", flags["streams"], MOST_STREAMS) or usual.streams,
            counts_of("--threads", flags["threads"], MOST_THREADS) or usual.threads,
        ),
        rounds=min(flags["rounds"], QUICK_ROUNDS) if quick else flags["rounds"],
        round_seconds=flags["round_seconds"],
        peer_dir=flags["peer_dir"] or default_peer_dir(),
    )


def _say(text: str) -> None:
    click.echo(f"moontide bench transfer: {text}", err=True)
