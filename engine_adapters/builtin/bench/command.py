"""`moontide bench serve`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from moontide.kvstore.bench import Report

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

    def say(text: str) -> None:
        click.echo(text, err=True)

    with tempfile.TemporaryDirectory(prefix="moontide-bench-") as directory:
        say("starting a cluster and a worker without a store")
        with serving(model, dram, Path(directory)) as served:
            bench = ServeBench(load_model(model), served, prompt_tokens, say)
            rows = bench.run(pairs)
    settings = {"model": model, "prompt_tokens": str(prompt_tokens), "pairs": str(pairs)}
    report = Report.of(rows, settings)
    report.show()
    if json_file is not None:
        report.write(json_file)
