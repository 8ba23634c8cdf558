"""Decides for each request what to load, from what loads and prefills took before."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model import KVTensors, ModelConfig
from .load_choice import Option, best
from .load_costs import PrefillCost, TransferRates
from .load_decision import Company, LoadDecision
from .plan import Chunk
from .sequence import LoadEstimate, Source
from .sequence import Sequence as Request
from .stats import Speeds

FAR_RESERVE = 1.15
"""A step that waits for another node is planned as if that took so much longer than measured."""


@dataclass(slots=True)
class LoadCounts:
    """Since the start. Seconds are sums over whole loads for which there was an estimate."""

    loads_shortened: int = 0  # found blocks were computed after the last that was loaded
    loads_skipped: int = 0  # nothing of what was found was loaded
    loads_dropped: int = 0  # given up on the way
    load_estimated_seconds: float = 0.0
    load_measured_seconds: float = 0.0
    load_error_seconds: float = 0.0  # of each load's estimate, without sign


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """A load that brought everything, or was dropped: then `seconds` is what it would have taken
    at least."""

    bytes_by_source: Mapping[Source, int]
    seconds: float
    estimate: LoadEstimate | None
    was_dropped: bool


@dataclass(slots=True)
class LoadAdvisor:
    """Measures. Engine thread only."""

    tensors: KVTensors
    config: ModelConfig
    counts: LoadCounts = field(default_factory=LoadCounts)
    rates: TransferRates = field(default_factory=TransferRates)
    prefill: PrefillCost = field(init=False)

    def __post_init__(self) -> None:
        self.prefill = PrefillCost(self.config, self.tensors.keys[0].device.type)

    def speeds(self) -> Speeds:
        rates = self.rates.per_second(time.monotonic())
        by_source = {str(source): bytes_per_s for source, bytes_per_s in rates.items()}
        return Speeds(self.prefill.tokens_per_s, by_source)

    def computed(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """One step. It tells of prefills when at least half of it was, and nothing was loaded."""
        prefills = [range(c.start, c.stop) for c in chunks if not c.sequence.is_decoding]
        num_tokens = sum(map(len, prefills))
        if 2 * num_tokens >= sum(chunk.num_tokens for chunk in chunks) and not any(
            chunk.load for chunk in chunks
        ):
            self.prefill.note(prefills, seconds)

    def ended(self, outcome: LoadOutcome) -> None:
        """A load from several sources tells of the one that was expected to take longest."""
        now = time.monotonic()
        expected = {
            source: self.rates.seconds(source, num_bytes, now)
            for source, num_bytes in outcome.bytes_by_source.items()
        }
        slowest = max(expected, key=lambda source: expected[source])
        seconds = outcome.seconds - (sum(expected.values()) - expected[slowest])
        if seconds > 0:
            self.rates.note(slowest, outcome.bytes_by_source[slowest], seconds, now)
        if outcome.estimate is not None and not outcome.was_dropped:
            self.counts.load_estimated_seconds += outcome.estimate.load_s
            self.counts.load_measured_seconds += outcome.seconds
            self.counts.load_error_seconds += abs(outcome.estimate.load_s - outcome.seconds)


class MeasuredChoice:
    """A `LoadChooser` that goes by the advisor's measurements."""

    def __init__(self, advisor: LoadAdvisor) -> None:
        self._advisor = advisor
        self._num_layers = advisor.config.num_layers
        self._block_tokens = advisor.tensors.page_tokens
        self._block_bytes = advisor.tensors.block_bytes * self._num_layers

    def choose(self, sequence: Request, load: range, company: Company) -> LoadDecision:
        if not load:
            return LoadDecision(load)
        options = self._options(sequence, load, company)
        count = best(options, self._num_layers)
        blocks, overlaps = load[:count], options[count].overlaps
        stop = sequence.num_tokens if overlaps else blocks.stop * self._block_tokens
        lost = range(blocks.start * self._block_tokens, stop)  # computed, if it is given up
        estimate = LoadEstimate(options[count].load_s, self._advisor.prefill.seconds(lost))
        return LoadDecision(blocks, len(load) - count, estimate, overlaps)

    def admitted(self, decision: LoadDecision) -> None:
        counts = self._advisor.counts
        counts.loads_shortened += bool(decision.blocks and decision.num_forgone)
        counts.loads_skipped += bool(not decision.blocks and decision.num_forgone)

    def _options(self, sequence: Request, load: range, company: Company) -> list[Option]:
        """What may overlap is loaded while the step computes."""
        assert sequence.found is not None
        now = time.monotonic()
        sources = [sequence.found.source(block) for block in load]
        seconds = {
            source: self._advisor.rates.seconds(source, self._block_bytes, now)
            for source in set(sources)
        }
        overlaps, load_s, reserve_s = True, 0.0, 0.0
        options = [Option(0.0, self._compute_s(sequence, load.start), overlaps)]
        for count, source in enumerate(sources, 1):
            load_s += seconds[source]
            reserve_s += 0.0 if source.is_local else (FAR_RESERVE - 1) * seconds[source]
            overlaps = overlaps and self._may_overlap(source, company, now)
            compute_s = self._compute_s(sequence, load.start + count)
            planned_s = load_s + (reserve_s if overlaps else 0.0)
            options.append(Option(planned_s, compute_s, overlaps))
        return options

    def _compute_s(self, sequence: Request, first_block: int) -> float:
        """From there to the end of the prompt."""
        tokens = range(first_block * self._block_tokens, sequence.num_tokens)
        return self._advisor.prefill.seconds(tokens)

    def _may_overlap(self, source: Source, company: Company, now: float) -> bool:
        """Whether a step may wait for it. Another node can be arbitrarily slow: only one whose pace
        was just seen, and while nobody else would wait."""
        if source.is_local:
            return company is not Company.BATCH
        return company is Company.NOBODY and self._advisor.rates.is_known(source, now)
