"""A tiny engine in this process, a real store daemon beside it, and ways to break what is between
them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moontide.engine_adapters.builtin.engine.engine import Engine
from moontide.engine_adapters.builtin.engine.kv_jobs import KvJobs
from moontide.engine_adapters.builtin.engine.load_advisor import LoadAdvisor
from moontide.engine_adapters.builtin.engine.output import Output, Reserved
from moontide.engine_adapters.builtin.engine.plan import Limits
from moontide.engine_adapters.builtin.engine.sequence import Handoff, Reuse
from moontide.engine_adapters.builtin.engine.store_connector import StoreConnector, StoreSettings
from moontide.engine_adapters.builtin.engine.store_link import NoStore, StoreLink
from moontide.engine_adapters.builtin.model import (
    Decoder,
    KVTensors,
    LayerHook,
    LoadedModel,
    Sampling,
    SequenceChunk,
    load_model,
)
from moontide.engine_adapters.builtin.worker.build import namespace_of
from moontide.kvstore import Namespace, StoreClient, block_keys, connect

from ...waiting import wait_until

BLOCK = 8
WAIT_SECONDS = 30.0


class RecordingDecoder:
    """The real decoder; keeps the logits of each chunk under the position after its last token."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.logits: list[tuple[int, torch.Tensor]] = []

    def forward(
        self, chunks: Sequence[SequenceChunk], kv: KVTensors, hook: LayerHook | None = None
    ) -> torch.Tensor:
        logits = self._decoder.forward(chunks, kv, hook)
        for chunk, row in zip(chunks, logits, strict=True):
            self.logits.append((chunk.start + len(chunk.token_ids), row.clone()))
        return logits

    def last_of(self, position: int) -> torch.Tensor:
        return next(row for stop, row in reversed(self.logits) if stop == position)


@dataclass(frozen=True)
class FixedLink:
    """Always the same store, whatever state it is in."""

    kv: KvJobs

    def store(self) -> KvJobs:
        return self.kv

    def daemon(self) -> str:
        return "test-daemon"

    def wait(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    text: str
    finish: str
    reuse: Reuse


class Running:
    """One request; `outputs` fills from the engine thread."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        num_resumed: int = 0,
        handoff: Handoff | None = None,
    ) -> None:
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.reserved = threading.Event()
        self.id = engine.submit(
            prompt, sampling, self._hear, num_resumed=num_resumed, handoff=handoff
        )

    def _hear(self, news: Output | Reserved) -> None:
        if isinstance(news, Output):
            self.outputs.put(news)
        else:
            assert not self.reserved.is_set()
            self.reserved.set()

    def result(self) -> Answer:
        tokens: list[int] = []
        text = ""
        while True:
            output = self.outputs.get(timeout=WAIT_SECONDS)
            tokens += output.token_ids
            text += output.text
            if output.finish is not None:
                assert output.reuse is not None
                return Answer(tokens, text, output.finish, output.reuse)


@dataclass
class Bench:
    """An engine under test."""

    engine: Engine
    decoder: RecordingDecoder

    def start(
        self,
        prompt: Sequence[int],
        max_tokens: int = 6,
        *,
        num_resumed: int = 0,
        handoff: Handoff | None = None,
        **sampling: Any,
    ) -> Running:
        settings = {"temperature": 0.0, "ignore_eos": True, **sampling}
        fixed = Sampling(max_tokens=max_tokens, **settings)
        return Running(self.engine, prompt, fixed, num_resumed=num_resumed, handoff=handoff)

    def run(self, prompt: Sequence[int], max_tokens: int = 6, **sampling: Any) -> Answer:
        return self.start(prompt, max_tokens, **sampling).result()

    def clear(self) -> int:
        return self.engine.clear_cache().result(timeout=WAIT_SECONDS)

    def wait(self, ready: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        wait_until(ready, seconds, lambda: f"not within {seconds} s: {self.engine.stats}")

    def stored(self, prompt: Sequence[int], max_tokens: int = 6) -> Answer:
        """Runs it, and waits until the store has its blocks."""
        answer = self.run(prompt, max_tokens)
        self.settle()
        return answer

    def settle(self) -> None:
        """Until nothing is held for any request."""
        self.wait(self.is_idle, 5.0)

    def is_idle(self) -> bool:
        stats = self.engine.stats
        store = stats.store
        held = (stats.running, stats.loading, stats.waiting, stats.pages_referenced)
        jobs = (store.outstanding_jobs, store.pending_lookups, store.tickets)
        return not any((*held, *jobs, store.staging_bytes))


MakeBench = Callable[..., Bench]
NewKv = Callable[[], KvJobs]


@pytest.fixture(scope="session")
def model(tiny_model_dir: Path) -> LoadedModel:
    return load_model(str(tiny_model_dir))


@pytest.fixture(scope="session")
def namespace(model: LoadedModel) -> Namespace:
    return namespace_of(model, kv_dtype="float32", block_tokens=BLOCK)


@pytest.fixture
def make_bench(model: LoadedModel, namespace: Namespace) -> Iterator[MakeBench]:
    with contextlib.ExitStack() as stack:

        def make(
            kv: KvJobs | None = None,
            *,
            num_pages: int = 256,
            max_batch_tokens: int = 64,
            max_running: int = 8,
            max_waiting: int = 64,
            decoder: Decoder | None = None,
            teach: Callable[[LoadAdvisor], None] = lambda advisor: None,
            **store: Any,
        ) -> Bench:
            link: StoreLink = NoStore() if kv is None else FixedLink(kv)
            tensors = KVTensors(model.config, num_pages=num_pages, page_tokens=BLOCK)
            recording = RecordingDecoder(decoder or model.decoder)
            limits = Limits(
                block_tokens=BLOCK,
                context_tokens=model.config.context_tokens,
                max_batch_tokens=max_batch_tokens,
                idle_batch_tokens=max_batch_tokens,
                max_running=max_running,
                max_waiting=max_waiting,
            )
            advisor = LoadAdvisor(tensors, model.config)
            teach(advisor)
            engine = Engine(
                replace(model, decoder=recording),  # type: ignore[arg-type]  # same interface
                tensors,
                StoreConnector(
                    link,
                    tensors,
                    StoreSettings(**{"load": "always", **store}),
                    advisor,
                ),
                limits,
                partial(block_keys, namespace),
            )
            stack.callback(engine.close)
            engine.start()
            return Bench(engine, recording)

        yield make


@pytest.fixture(scope="module")
def socket(module_store_daemon: Callable[[], Any]) -> Path:
    """Of a real store daemon."""
    path: Path = module_store_daemon().socket
    return path


@pytest.fixture
def client(socket: Path) -> Iterator[StoreClient]:
    """A client of an empty daemon."""
    with connect(f"unix:{socket}", timeout_s=WAIT_SECONDS) as client:
        client.clear()
        yield client


@pytest.fixture
def new_kv(client: StoreClient, namespace: Namespace) -> NewKv:
    """Each engine needs its own: results go to whoever polls."""
    return lambda: client.kv(namespace)
