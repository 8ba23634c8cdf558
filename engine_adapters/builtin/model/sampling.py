"""Choosing the next token. Randomness is a function of (seed, position) only, so a token does not
depend on what else is in the batch, and a sequence resumed elsewhere goes on the same."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """One request's sampling parameters. Raises InvalidRequest naming the field and its bound."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    seed: int = 0  # any 64-bit integer
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


def sample(logits: Tensor, sampling: Sampling, position: int) -> int:
    """The token for `position` (the number of tokens before it) from its float32 logits
    `[vocab_size]`. Ties go to the smallest token id."""
    raise NotImplementedError
