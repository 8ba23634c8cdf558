"""What loads and prefills take here, as measured so far; a guess where nothing was measured yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..model import ModelConfig
from .sequence import Source

FIRST_BYTES_PER_S = {"shm": 2e9, "file": 5e8, "tcp": 1e8}
"""Of a transport nobody has measured: what slow memory, a SATA SSD and a 1 Gbit/s network give. So
a first load is mostly taken, which measures it; if it is much slower it is dropped on the way."""
FIRST_FLOPS = {"cpu": 3e10, "cuda": 3e13}
"""Of a device, by half an order less than it mostly gives, for the same reason."""
MEMORY_BYTES = float(1 << 20)
MEMORY_TOKENS = 512.0
"""A measurement as large as this halves the weight of all before it, a smaller one less."""
HALF_LIFE_S = 60.0
"""A way that is not used tells nothing: so often its rate goes half the way back to the guess (on
a logarithmic scale), so that a network that has recovered is tried again."""

MAX_SOURCES = 256


@dataclass(slots=True)
class MeasuredRate:
    """Units a second. Pure: `now` is passed in (monotonic seconds)."""

    first_guess: float
    memory: float  # units
    half_life_s: float = math.inf
    _units: float = 0.0
    _seconds: float = 0.0
    _noted_at: float = 0.0

    def note(self, units: float, seconds: float, now: float) -> None:
        keep = 0.5 ** min(1.0, units / self.memory)
        self._units = keep * self._units + units
        self._seconds = keep * self._seconds + seconds
        self._noted_at = now

    def age_s(self, now: float) -> float:
        """Since the last measurement."""
        return now - self._noted_at if self._seconds > 0 else math.inf

    def per_second(self, now: float) -> float:
        if self._seconds <= 0:
            return self.first_guess
        trust = 0.5 ** (max(0.0, now - self._noted_at) / self.half_life_s)
        measured = self._units / self._seconds
        return float(measured**trust * self.first_guess ** (1 - trust))


class TransferRates:
    """Bytes a second from each source that was loaded from, at most MAX_SOURCES."""

    def __init__(self) -> None:
        self._rates: dict[Source, MeasuredRate] = {}

    def note(self, source: Source, num_bytes: int, seconds: float, now: float) -> None:
        self._rate(source).note(num_bytes, seconds, now)

    def seconds(self, source: Source, num_bytes: int, now: float) -> float:
        return num_bytes / self._rate(source).per_second(now)

    def is_known(self, source: Source, now: float) -> bool:
        """It was loaded from a short while ago."""
        rate = self._rates.get(source)
        return rate is not None and rate.age_s(now) < HALF_LIFE_S

    def per_second(self, now: float) -> Mapping[Source, float]:
        return {source: rate.per_second(now) for source, rate in self._rates.items()}

    def _rate(self, source: Source) -> MeasuredRate:
        rate = self._rates.get(source)
        if rate is None:
            guess = FIRST_BYTES_PER_S.get(source.transport, FIRST_BYTES_PER_S["tcp"])
            rate = self._rates[source] = MeasuredRate(guess, MEMORY_BYTES, HALF_LIFE_S)
            if len(self._rates) > MAX_SOURCES:
                del self._rates[next(iter(self._rates))]  # known longest
        return rate


class PrefillCost:
    """Seconds to compute tokens, by where in the prompt they are: each costs its share of the
    weights, and attention to all before it. The ratio of the two comes from the model's shape, the
    speed from what this worker took."""

    def __init__(self, config: ModelConfig, device: str) -> None:
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        hidden = config.hidden_size
        token_flops = 4 * hidden * (width + kv_width) + 6 * hidden * config.intermediate_size
        self._context_tokens = token_flops / (4 * width)  # attention to so many costs as much
        guess = FIRST_FLOPS.get(device, FIRST_FLOPS["cuda"]) / (token_flops * config.num_layers)
        self._rate = MeasuredRate(guess, MEMORY_TOKENS)

    @property
    def tokens_per_s(self) -> float:
        """Of a prompt's first tokens."""
        return self._rate.per_second(0.0)

    def note(self, chunks: list[range], seconds: float) -> None:
        """One step computed these ranges of positions."""
        self._rate.note(sum(map(self._work, chunks)), seconds, 0.0)

    def seconds(self, positions: range) -> float:
        return self._work(positions) / self._rate.per_second(0.0)

    def _work(self, positions: range) -> float:
        """In tokens without context."""
        context = (positions.start + positions.stop) / 2
        return len(positions) * (1 + context / self._context_tokens)
