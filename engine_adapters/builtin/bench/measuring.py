"""Prompts, measured first tokens and rows: what every case of the benchmark shares."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from moontide.kvstore.bench import Row, Spread, ratio_interval
from moontide.kvstore.service import CommandFailed

from .client import Client, FirstToken

BLOCK_TOKENS = 64  # the workers' default
_FIRST_PLAIN_TOKEN = 100  # below it SmolLM2 has its special tokens

Say = Callable[[str], None]


class Prompts:
    """Random tokens from a fixed seed: each prompt is new and shares no block with another."""

    def __init__(self, vocab_size: int, num_tokens: int, seed: int) -> None:
        self.num_tokens = num_tokens
        self._vocabulary = range(_FIRST_PLAIN_TOKEN, vocab_size)
        self._rng = random.Random(seed)

    def of_length(self, num_tokens: int) -> list[int]:
        return self._rng.choices(self._vocabulary, k=num_tokens)

    def next(self) -> list[int]:
        return self.of_length(self.num_tokens)

    @property
    def full_block_tokens(self) -> int:
        """What a cache can give: the last token is always computed."""
        return (self.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Asker:
    """Asks for first tokens, and takes no other answer than the one a row claims."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model

    def cold(self, prompt: list[int], *, worker: str = "", max_tokens: int = 1) -> FirstToken:
        """Nothing of it may be cached. Raises CommandFailed."""
        return self.cached(prompt, {}, worker=worker, max_tokens=max_tokens)

    def cached(
        self,
        prompt: list[int],
        tokens_by_tier: dict[str, int],
        *,
        worker: str = "",
        max_tokens: int = 1,
    ) -> FirstToken:
        """So many tokens have to come from where the row says. Raises CommandFailed."""
        first = self._client.first_token(self._model, prompt, worker=worker, max_tokens=max_tokens)
        tiers = {tier: count for tier, count in first.evidence.cached_by_tier.items() if count}
        handed_over = bool(first.evidence.prefill_worker)  # then its tiers tell the way of that
        expected = sum(tokens_by_tier.values())
        if first.cached_tokens != expected or not (handed_over or tiers == tokens_by_tier):
            raise CommandFailed(
                f"{first.cached_tokens} of {len(prompt)} prompt tokens were cached ({tiers}), "
                f"expected {tokens_by_tier or 'none'}; are --dram and --nvme large enough?"
            )
        return first


def ratio_row(case: str, unit: str, ours: Sequence[float], limit: Sequence[float]) -> Row:
    """Of pairs measured in turn."""
    interval = ratio_interval(list(zip(ours, limit, strict=True)))
    return Row(
        case=case,
        ours={unit: Spread.of(ours)},
        limit={unit: Spread.of(limit)},
        ratio={"limit": 1 / interval.median},
        note=f"{interval.median:.4g}, 95 % interval {interval.low:.4g}–{interval.high:.4g}",
    )
