"""TTFT at the HTTP client: cold against the bare forward pass, cached against cold, with the store
against without. Every comparison is interleaved, pair by pair, in one run."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import torch

from moontide.kvstore.bench import Row, Spread, ratio_interval

from ..model import KV_DTYPES, KVTensors, LoadedModel, SequenceChunk
from .processes import Served

_DEADLINE_S = 120.0
_BLOCK_TOKENS = 64

Say = Callable[[str], None]


class ServeBench:
    """Prompts are random tokens from a fixed seed, so each cold prompt is new and none repeats."""

    def __init__(self, model: LoadedModel, served: Served, prompt_tokens: int, say: Say) -> None:
        self._model = model
        self._served = served
        self._prompt_tokens = prompt_tokens
        self._say = say
        self._rng = random.Random(7)
        pages = -(-prompt_tokens // _BLOCK_TOKENS)
        self._tensors = KVTensors(
            model.config,
            num_pages=pages,
            page_tokens=_BLOCK_TOKENS,
            dtype=KV_DTYPES["float32"],
            device=torch.device("cpu"),
        )

    def run(self, pairs: int) -> list[Row]:
        self._first_token(self._served.conductor, self._prompt())  # warm up both workers
        self._first_token(self._served.worker_without_store, self._prompt())
        self._bare_forward(self._prompt())
        bare, cold, dram = [], [], []
        with_store: list[float] = []
        without_store: list[float] = []
        for index in range(pairs):
            self._say(f"pair {index + 1} of {pairs}")
            prompt = self._prompt()
            bare.append(self._bare_forward(prompt))
            cold.append(self._first_token(self._served.conductor, prompt))
            self._post(self._served.worker, "/v1/cache/clear", {})
            dram.append(self._first_token(self._served.conductor, prompt))
            sides = [
                (self._served.worker, with_store),
                (self._served.worker_without_store, without_store),
            ]
            for url, times in sides if index % 2 else reversed(sides):
                times.append(self._first_token(url, self._prompt()))
        return [
            _row("cold TTFT / bare forward", cold, bare),
            _row("dram TTFT / cold TTFT", dram, cold),
            _row("prefill with the store / without", with_store, without_store),
        ]

    def _prompt(self) -> list[int]:
        vocabulary = self._model.config.vocab_size
        return [self._rng.randrange(100, vocabulary) for _ in range(self._prompt_tokens)]

    def _bare_forward(self, prompt: list[int]) -> float:
        """Seconds of one forward pass over the whole prompt, with nothing around it."""
        pages = list(range(self._tensors.num_pages))
        start = time.perf_counter()
        self._model.decoder.forward([SequenceChunk(prompt, 0, pages)], self._tensors, _NoHook())
        return time.perf_counter() - start

    def _first_token(self, url: str, prompt: list[int]) -> float:
        """Seconds until the first streamed chunk with text or tokens."""
        body = {
            "model": self._model.name,
            "prompt": prompt,
            "max_tokens": 1,
            "stream": True,
            "ignore_eos": True,
        }
        start = time.perf_counter()
        connection, response = self._open(url, "/v1/completions", body)
        try:
            for line in response:
                if line.startswith(b"data: ") and b'"choices"' in line:
                    elapsed = time.perf_counter() - start
                    response.read()
                    return elapsed
        finally:
            connection.close()
        raise RuntimeError(f"{url} streamed no token")

    def _post(self, url: str, path: str, body: dict[str, object]) -> None:
        connection, response = self._open(url, path, body)
        response.read()
        connection.close()

    def _open(
        self, url: str, path: str, body: dict[str, object]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Raises RuntimeError on anything but 200."""
        parts = urlsplit(url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_DEADLINE_S)
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._served.token}",
        }
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{url}{path} answered {response.status}: {response.read()!r}")
        return connection, response


class _NoHook:
    def before_layer(self, layer: int) -> None:
        pass

    def after_layer(self, layer: int) -> None:
        pass


def _row(case: str, ours: list[float], limit: list[float]) -> Row:
    interval = ratio_interval(list(zip(ours, limit, strict=True)))
    return Row(
        case=case,
        ours={"seconds": Spread.of(ours)},
        limit={"seconds": Spread.of(limit)},
        ratio={"limit": 1 / interval.median},
        note=f"{interval.median:.4g}, 95 % interval {interval.low:.4g}–{interval.high:.4g}",
    )
