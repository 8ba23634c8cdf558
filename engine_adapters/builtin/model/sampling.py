"""Choosing the next token. Randomness is a function of (seed, position) only, so a token does not
depend on what else is in the batch, and a sequence resumed elsewhere goes on the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import EngineError, InvalidRequest

MAX_TEMPERATURE = 100.0
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's sampling parameters. Raises InvalidRequest naming the field and its bound."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int = 0  # taken modulo 2^64
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0 <= self.temperature <= MAX_TEMPERATURE, "0..100"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, up to 1"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (all tokens) or more"),
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "1 or more"),
        )
        for name, value, holds, bound in checks:
            if not holds:
                raise InvalidRequest(f"{name} is {value}; it must be {bound}")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                raise InvalidRequest(
                    f"a stop string has {len(text)} characters; it must have "
                    f"1..{MAX_STOP_CHARACTERS}"
                )


def sample(logits: Tensor, sampling: Sampling, position: int) -> int:
    """The token for `position` (the number of tokens before it) from its float32 logits
    `[vocab_size]`. Ties go to the smallest token id. Raises EngineError when the logits hold NaN
    or no finite value: then weights or KV are damaged."""
    scores = logits.numpy(force=True)
    best = int(scores.argmax())
    if not math.isfinite(scores[best]):
        raise EngineError(f"the logits for position {position} are not finite")
    if sampling.temperature == 0 or sampling.top_k == 1:
        return best
    weights = np.exp((scores - scores[best]).astype(np.float64) / sampling.temperature)
    if sampling.top_k or sampling.top_p < 1:
        weights[_excluded(weights, sampling)] = 0.0
    reached = weights.cumsum()
    return int(reached.searchsorted(uniform(sampling.seed, position) * reached[-1], "right"))


def uniform(seed: int, position: int) -> float:
    """Evenly distributed in [0, 1): splitmix64 of seed, then of position."""
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def _excluded(weights: NDArray[np.float64], sampling: Sampling) -> NDArray[np.intp]:
    """Tokens beyond the `top_k` heaviest, and beyond the heaviest ones that together reach
    `top_p` of what is left."""
    order = np.argsort(-weights, kind="stable")
    kept = weights[order[: sampling.top_k or None]]
    reached = kept.cumsum()
    num_kept = int(reached.searchsorted(sampling.top_p * reached[-1])) + 1
    return order[min(num_kept, len(kept)) :]


def _mix(value: int) -> int:
    """One output of splitmix64 (https://prng.di.unimi.it/splitmix64.c) at state `value`."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
