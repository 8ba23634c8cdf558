"""`moontide bench serve`."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from moontide.kvstore.bench import Report, Row, check_effect, size_of
from moontide.kvstore.service import CommandFailed, guarded, json_file_flag

from ..errors import ModelError
from ..model import LoadedModel, load_model
from .caches import CachesBench
from .handoff import HandoffBench
from .measuring import Prompts
from .processes import Cluster, running_cluster, running_worker_without_store
from .tbt import TokenGapsBench
from .throttled import LINKS, ThrottledBench, linked, with_one_token
from .tiers import TiersBench


@dataclass(frozen=True, slots=True)
class _Settings:
    model: str
    dram: str
    nvme: str
    prompt_tokens: int
    pairs: int
    links: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Case:
    """Runs one group of rows on a cluster of its own."""

    settings: _Settings
    model: LoadedModel
    directory: Path

    def caches(self) -> list[Row]:
        with (
            self._cluster("--both", "1") as cluster,
            running_worker_without_store(
                self.directory, self.settings.model, cluster.token_file
            ) as storeless,
        ):
            bench = CachesBench(self.model, cluster, storeless, self._prompts(7), _say)
            return bench.run(self.settings.pairs)

    def tiers(self) -> list[Row]:
        nvme = ("--nvme", self.settings.nvme)
        with self._cluster("--nodes", "2", "--both", "2", *nvme) as cluster:
            bench = TiersBench(self.model.name, cluster, self._prompts(8), _say)
            return bench.run(self.settings.pairs)

    def handoff(self) -> list[Row]:
        with self._cluster("--nodes", "2", "--prefill", "1", "--decode", "1") as cluster:
            bench = HandoffBench(self.model.name, cluster, self._prompts(9), _say)
            return bench.run(self.settings.pairs)

    def tbt(self) -> list[Row]:
        one_thread = {"MOONTIDE_WORKER_THREADS": "1", "OMP_NUM_THREADS": "1"}
        roles = ("--nodes", "2", "--prefill", "1", "--decode", "1")
        with self._cluster(*roles, environment=one_thread) as cluster:
            bench = TokenGapsBench(self.model, cluster, self._prompts(10), _say)
            return bench.run(self.settings.pairs)

    def throttled(self) -> list[Row]:
        here, there = self.directory / "home", self.directory / "other"
        with_one_token(here, there)
        with (
            self._cluster("--both", "1", within=here) as home,
            self._cluster("--both", "1", within=there) as other,
            linked(here / "run" / "cluster", there / "run" / "cluster") as relay,
        ):
            prompts = self._prompts(11)
            bench = ThrottledBench(self.model.name, home, other, relay, prompts, _say)
            return bench.run(self.settings.pairs, self.settings.links)

    def _prompts(self, seed: int) -> Prompts:
        return Prompts(self.model.config.vocab_size, self.settings.prompt_tokens, seed)

    @contextlib.contextmanager
    def _cluster(
        self,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        within: Path | None = None,
    ) -> Iterator[Cluster]:
        _say(f"starting a cluster: {' '.join(flags)}")
        shared = ("--model", self.settings.model, "--dram", self.settings.dram)
        directory = within or self.directory
        with running_cluster(directory, *shared, *flags, environment=environment) as cluster:
            yield cluster


_CASES: Mapping[str, Callable[[_Case], list[Row]]] = {
    "caches": _Case.caches,
    "tiers": _Case.tiers,
    "handoff": _Case.handoff,
    "tbt": _Case.tbt,
    "throttled": _Case.throttled,
}

_CASES_OF_FLAG: Mapping[str, tuple[str, ...]] = {"nvme": ("tiers",), "links": ("throttled",)}
"""Which cases a flag has an effect on, where not on all."""
_LEAST_TIER_BYTES = 64 << 20
"""As `moontide up` takes it."""


@click.command()
@click.option("--model", default="smollm2", show_default=True, help="As of `moontide worker`")
@click.option("--dram", default="1GiB", show_default=True, help="Size of each node's pool")
@click.option("--nvme", default="2GiB", show_default=True, help="Size of each node's NVMe tier")
@click.option("--prompt-tokens", default=1500, show_default=True, type=click.IntRange(128, 8000))
@click.option(
    "--pairs", default=15, show_default=True, type=click.IntRange(1, 1000), help="Per comparison"
)
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=click.Choice(list(_CASES)),
    help="Only these; may be repeated",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=click.Choice(list(LINKS)),
    help="Of `throttled` only these; may be repeated",
)
@json_file_flag
def serve(
    model: str,
    dram: str,
    nvme: str,
    prompt_tokens: int,
    pairs: int,
    cases: tuple[str, ...],
    links: tuple[str, ...],
    json_file: Path | None,
) -> None:
    """TTFT cold, cached in every place and handed over, and gaps between tokens; interleaved."""
    settings = _Settings(model, dram, nvme, prompt_tokens, pairs, links or tuple(LINKS))
    chosen = tuple(dict.fromkeys(cases)) or tuple(_CASES)

    def run() -> int:
        check_effect(_CASES_OF_FLAG, chosen)
        for flag, size in (("--dram", dram), ("--nvme", nvme)):
            size_of(flag, size, _LEAST_TIER_BYTES)
        report = _measure(settings, chosen)
        report.show()
        if json_file is not None:
            report.write(json_file)
        return 0

    sys.exit(guarded("bench serve", run))


def _measure(settings: _Settings, cases: tuple[str, ...]) -> Report:
    try:
        loaded = load_model(settings.model)
    except ModelError as error:
        raise CommandFailed(str(error)) from error
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="moontide-bench-") as directory:
            rows += _CASES[case](_Case(settings, loaded, Path(directory)))
    told = {
        "model": settings.model,
        "prompt_tokens": str(settings.prompt_tokens),
        "pairs": str(settings.pairs),
    }
    return Report.of(rows, told)


def _say(text: str) -> None:
    click.echo(f"moontide bench serve: {text}", err=True)
