"""TTFT at the HTTP client: cold against the bare forward pass, cached against cold, with the store
against without. Every comparison is interleaved, pair by pair, in one run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from moontide.kvstore.bench import Row, Spread, ratio_interval
from moontide.kvstore.service import CommandFailed

from ..model import KVTensors, LoadedModel, SequenceChunk
from .client import Client
from .processes import Served

_BLOCK_TOKENS = 64  # the workers' default
_FIRST_PLAIN_TOKEN = 100  # below it SmolLM2 has its special tokens

Say = Callable[[str], None]


class ServeBench:
    """Prompts are random tokens from a fixed seed, so each cold prompt is new and none repeats."""

    def __init__(self, model: LoadedModel, served: Served, prompt_tokens: int, say: Say) -> None:
        self._model = model
        self._conductor = Client(served.conductor, served.token)
        self._worker = Client(served.worker, served.token)
        self._storeless = Client(served.worker_without_store, served.token)
        self._prompt_tokens = prompt_tokens
        self._say = say
        self._rng = random.Random(7)
        self._tensors = KVTensors(
            model.config,
            num_pages=-(-prompt_tokens // _BLOCK_TOKENS),
            page_tokens=_BLOCK_TOKENS,
        )
        self._bare: list[float] = []
        self._cold: list[float] = []
        self._dram: list[float] = []
        self._with_store: list[float] = []
        self._without_store: list[float] = []

    def run(self, pairs: int) -> list[Row]:
        """Raises CommandFailed, also where a prompt was not as cold or as cached as its row
        says."""
        self._warm_up()
        for index in range(pairs):
            self._say(f"pair {index + 1} of {pairs}")
            self._compare_caches()
            self._compare_stores(store_first=index % 2 == 0)
        return [
            _row("cold TTFT / bare forward", self._cold, self._bare),
            _row("dram TTFT / cold TTFT", self._dram, self._cold),
            _row("prefill with the store / without", self._with_store, self._without_store),
        ]

    def _warm_up(self) -> None:
        self._ttft(self._conductor, self._prompt())
        self._ttft(self._storeless, self._prompt())
        self._bare_forward(self._prompt())

    def _compare_caches(self) -> None:
        """One prompt three ways: the bare model, cold, from the pool."""
        prompt = self._prompt()
        self._bare.append(self._bare_forward(prompt))
        self._cold.append(self._ttft(self._conductor, prompt))
        self._worker.settle()
        self._worker.clear_cache()
        full = (len(prompt) - 1) // _BLOCK_TOKENS * _BLOCK_TOKENS
        self._dram.append(self._ttft(self._conductor, prompt, cached_tokens=full))

    def _compare_stores(self, *, store_first: bool) -> None:
        """A cold prompt for each worker; who goes first changes from pair to pair."""
        sides = [(self._worker, self._with_store), (self._storeless, self._without_store)]
        for client, seconds in sides if store_first else reversed(sides):
            seconds.append(self._ttft(client, self._prompt()))
        self._worker.settle()

    def _prompt(self) -> list[int]:
        vocabulary = range(_FIRST_PLAIN_TOKEN, self._model.config.vocab_size)
        return self._rng.choices(vocabulary, k=self._prompt_tokens)

    def _ttft(self, client: Client, prompt: list[int], *, cached_tokens: int = 0) -> float:
        first = client.first_token(self._model.name, prompt)
        if first.cached_tokens != cached_tokens:
            raise CommandFailed(
                f"{first.cached_tokens} of {len(prompt)} prompt tokens were cached, expected "
                f"{cached_tokens}; is --dram large enough for the prompt?"
            )
        return first.seconds

    def _bare_forward(self, prompt: list[int]) -> float:
        """Seconds of one forward pass over the whole prompt, with nothing around it."""
        chunk = SequenceChunk(prompt, 0, range(self._tensors.num_pages))
        start = time.perf_counter()
        self._model.decoder.forward([chunk], self._tensors)
        return time.perf_counter() - start


def _row(case: str, ours: list[float], limit: list[float]) -> Row:
    interval = ratio_interval(list(zip(ours, limit, strict=True)))
    return Row(
        case=case,
        ours={"seconds": Spread.of(ours)},
        limit={"seconds": Spread.of(limit)},
        ratio={"limit": 1 / interval.median},
        note=f"{interval.median:.4g}, 95 % interval {interval.low:.4g}–{interval.high:.4g}",
    )
