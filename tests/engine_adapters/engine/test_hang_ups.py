"""Clients that leave while their request is on its way into the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from moontide.engine_adapters.builtin.model import LoadedModel
from moontide.engine_adapters.builtin.worker.api import CompletionRequest
from moontide.engine_adapters.builtin.worker.completions import Completions
from moontide.engine_adapters.builtin.worker.metrics import WorkerMetrics
from moontide.kvstore.service import Call

from .conftest import Bench, MakeBench


class ClosedWriter:
    """Of a connection whose client left."""

    async def write_headers(self, *_: Any) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def _call(**fields: Any) -> Call[CompletionRequest, None]:
    body = CompletionRequest(prompt=[7] * 20, max_tokens=400, ignore_eos=True, **fields)
    http = make_mocked_request("POST", "/v1/completions", writer=ClosedWriter())
    return Call(body, None, {}, http, asyncio.Event())


async def _leaves_at_once(completions: Completions) -> None:
    await completions.create(_call(stream=True))


async def _is_cancelled_at_once(completions: Completions) -> None:
    task = asyncio.create_task(completions.create(_call()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [_leaves_at_once, _is_cancelled_at_once])
def test_r17_a_client_gone_before_its_answer_began_is_an_abort(
    make_bench: MakeBench, model: LoadedModel, leave: Any
) -> None:
    bench: Bench = make_bench()
    metrics = WorkerMetrics(lambda: bench.engine.stats)
    asyncio.run(leave(Completions(bench.engine, model, metrics)))
    bench.wait(lambda: bench.engine.stats.aborted == 1, 5.0)
    bench.settle()
    assert bench.engine.stats.finished == 0
