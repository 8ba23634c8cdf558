"""`moontide bench serve`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from moontide.kvstore.bench import Report
from moontide.kvstore.service import CommandFailed, guarded

from ..errors import ModelError
from ..model import load_model
from .processes import serving
from .serve import ServeBench


@click.command()
@click.option("--model", default="smollm2", show_default=True, help="As of `moontide worker`")
@click.option("--dram", default="1GiB", show_default=True, help="Size of the pool")
@click.option("--prompt-tokens", default=1500, show_default=True, type=click.IntRange(128, 8000))
@click.option(
    "--pairs", default=15, show_default=True, type=click.IntRange(1, 1000), help="Per comparison"
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the report here")
def serve(model: str, dram: str, prompt_tokens: int, pairs: int, json_file: Path | None) -> None:
    """TTFT cold, cached, and the price of storing, interleaved in one run."""

    def run() -> int:
        report = _measure(model, dram, prompt_tokens, pairs)
        report.show()
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench serve", run))


def _measure(model: str, dram: str, prompt_tokens: int, pairs: int) -> Report:
    try:
        loaded = load_model(model)
    except ModelError as error:
        raise CommandFailed(str(error)) from error
    _say("starting a cluster and a worker without a store")
    with (
        tempfile.TemporaryDirectory(prefix="moontide-bench-") as directory,
        serving(model, dram, Path(directory)) as served,
    ):
        rows = ServeBench(loaded, served, prompt_tokens, _say).run(pairs)
    settings = {"model": model, "prompt_tokens": str(prompt_tokens), "pairs": str(pairs)}
    return Report.of(rows, settings)


def _say(text: str) -> None:
    click.echo(f"moontide bench serve: {text}", err=True)
