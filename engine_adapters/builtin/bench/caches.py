"""One node: cold against the bare forward pass, cached against cold, with the store against
without."""

from __future__ import annotations

import time

from moontide.kvstore.bench import Row

from ..model import KVTensors, LoadedModel, SequenceChunk
from .client import Client
from .controls import Controls
from .measuring import BLOCK_TOKENS, Asker, Prompts, Say, ratio_row
from .processes import Cluster


class CachesBench:
    """`cluster` has one worker; `storeless` is the URL of one without a store."""

    def __init__(
        self,
        model: LoadedModel,
        cluster: Cluster,
        storeless: str,
        prompts: Prompts,
        say: Say,
    ) -> None:
        token = cluster.token
        self._model = model
        self._controls = Controls(cluster)
        self._conductor = Asker(Client(cluster.conductor.url, token), model.name)
        self._worker = Asker(Client(cluster.workers[0].url, token), model.name)
        self._storeless = Asker(Client(storeless, token), model.name)
        self._prompts = prompts
        self._say = say
        self._tensors = KVTensors(
            model.config,
            num_pages=-(-prompts.num_tokens // BLOCK_TOKENS),
            page_tokens=BLOCK_TOKENS,
        )
        self._bare: list[float] = []
        self._cold: list[float] = []
        self._dram: list[float] = []
        self._with_store: list[float] = []
        self._without_store: list[float] = []

    def run(self, pairs: int) -> list[Row]:
        """Raises CommandFailed, also where a prompt was not as cold or as cached as its row
        says."""
        self._conductor.cold(self._prompts.next())  # warms up
        self._storeless.cold(self._prompts.next())
        self._bare_forward(self._prompts.next())
        for index in range(pairs):
            self._say(f"cold and dram, pair {index + 1} of {pairs}")
            self._compare_caches()
            self._compare_stores(store_first=index % 2 == 0)
        return [
            ratio_row("cold TTFT / bare forward", "seconds", self._cold, self._bare),
            ratio_row("dram TTFT / cold TTFT", "seconds", self._dram, self._cold),
            ratio_row(
                "prefill with the store / without",
                "seconds",
                self._with_store,
                self._without_store,
            ),
        ]

    def _compare_caches(self) -> None:
        """One prompt three ways: the bare model, cold, from the pool."""
        prompt = self._prompts.next()
        self._bare.append(self._bare_forward(prompt))
        self._cold.append(self._conductor.cold(prompt).seconds)
        self._controls.settle()
        self._controls.clear_engine_caches()
        found = {"dram": self._prompts.full_block_tokens}
        self._dram.append(self._conductor.cached(prompt, found).seconds)

    def _compare_stores(self, *, store_first: bool) -> None:
        """A cold prompt for each worker; who goes first changes from pair to pair."""
        sides = [(self._worker, self._with_store), (self._storeless, self._without_store)]
        for asker, seconds in sides if store_first else reversed(sides):
            seconds.append(asker.cold(self._prompts.next()).seconds)
        self._controls.settle()

    def _bare_forward(self, prompt: list[int]) -> float:
        """Seconds of one forward pass over the whole prompt, with nothing around it."""
        chunk = SequenceChunk(prompt, 0, range(self._tensors.num_pages))
        start = time.perf_counter()
        self._model.decoder.forward([chunk], self._tensors)
        return time.perf_counter() - start
