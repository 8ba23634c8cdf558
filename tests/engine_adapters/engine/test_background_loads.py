"""Loads beside a running batch: it never waits for them, and they change no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from moontide.engine_adapters.builtin.engine.background_loads import (
    FILL_BYTES,
    PART_BYTES,
    BackgroundLoads,
)
from moontide.engine_adapters.builtin.engine.breaker import Breaker
from moontide.engine_adapters.builtin.engine.kv_jobs import KvJobs
from moontide.engine_adapters.builtin.engine.sequence import Found, Source
from moontide.engine_adapters.builtin.engine.sequence import Sequence as Request
from moontide.engine_adapters.builtin.engine.store_jobs import JobDesk, StagingBudget
from moontide.engine_adapters.builtin.model import KVTensors, LoadedModel, Sampling
from moontide.kvstore import JobId, JobResult, JobStatus, Tier
from moontide.kvstore.errors import StoreUnavailable

from .conftest import BLOCK, FixedLink, MakeBench, NewKv, Running
from .taps import Altering, Holding, Refusing, Tap, fail_block, lose, time_out
from .test_engine import prompt
from .test_store_paths import full_blocks

NUM_LAYERS = 4


class AtOnce:
    """A store whose loads have come when they are asked for."""

    def __init__(self) -> None:
        self.results: list[JobResult] = []

    def submit_load(
        self, ticket: object, layers: object, destinations: Sequence[Any], **rest: object
    ) -> JobId:
        for blocks in destinations:
            for number, block in enumerate(blocks):
                block[:] = bytes([number + 1]) * len(block)
        self.results.append(JobResult(JobId(len(self.results) + 1), JobStatus.DONE))
        return self.results[-1].job

    def poll(self) -> list[JobResult]:
        return self.results

    def cancel(self, job: JobId) -> None:
        pass


def test_what_is_written_into_pages_between_two_steps_is_bounded(model: LoadedModel) -> None:
    """However much has come, so that the step after it comes soon."""
    config = replace(model.config, num_kv_heads=8, head_dim=128)
    tensors = KVTensors(config, num_pages=50, page_tokens=64)
    desk = JobDesk(FixedLink(AtOnce()), Breaker(), StagingBudget(0))  # type: ignore[arg-type]  # a part of it
    loads = BackgroundLoads(desk, tensors, StagingBudget(64 << 20))
    requests = []
    for number in range(2):
        request = Request(number, (), Sampling())
        request.found = Found(0, (Source(Tier.DRAM, "shm"),) * 20)
        request.pages = list(range(20 * number, 20 * (number + 1)))
        requests.append(request)
        loads.begin(request, range(20), None, window_bytes=32 << 20, idle_s=5.0)  # type: ignore[arg-type]  # not read
    total, turns, over = 2 * 20 * NUM_LAYERS * tensors.block_bytes, 0, []
    before = 0
    while len(loads):
        desk.poll()
        assert loads.is_ready
        over += loads.fill()
        turns += 1
        written = sum(request.reuse.loaded_bytes for request in requests)
        assert 0 < written - before <= FILL_BYTES + PART_BYTES
        before = written
    assert before == total
    assert turns >= total // (FILL_BYTES + PART_BYTES)
    assert [load.sequence for load in over] == requests  # oldest first
    assert loads.staging.used_bytes == 0
    assert float(tensors.keys[0][0, 19 * 64, 0]) != 0


def beside_a_decode(bench: Any) -> Running:
    """A request that decodes for long, with nothing to load."""
    decoding: Running = bench.start(prompt(BLOCK - 1, 77), 300)
    bench.wait(lambda: bench.engine.stats.output_tokens > 0)
    return decoding


def test_a_running_batch_does_not_wait_for_a_load(make_bench: MakeBench, new_kv: NewKv) -> None:
    expected = make_bench(new_kv()).stored(prompt(50))
    alone = make_bench().run(prompt(BLOCK - 1, 77), 60)
    holding = Holding(new_kv(), "submit_load")
    bench = make_bench(holding)
    decoding = bench.start(prompt(BLOCK - 1, 77), 60)
    bench.wait(lambda: bench.engine.stats.output_tokens > 0)
    request = bench.start(prompt(50))
    bench.wait(lambda: bench.engine.stats.loading == 1)
    assert decoding.result().token_ids == alone.token_ids
    assert request.outputs.empty()
    holding.let_go()
    answer = request.result()
    assert answer.token_ids == expected.token_ids
    assert (answer.reuse.dram_tokens, answer.reuse.recomputed) == (48, False)
    assert answer.reuse.bytes_by_transport == {"shm": 6 * NUM_LAYERS * 2 * 2 * BLOCK * 16 * 4}
    bench.settle()


FAILURES: dict[str, Callable[[KvJobs, int], Tap]] = {
    "refused": lambda kv, k: Refusing(kv, "submit_load", k, StoreUnavailable("gone")),
    "first block gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(0)),
    "block 3 gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(3)),
    "timed out": lambda kv, k: Altering(kv, "submit_load", k, time_out),
    "never answered": lambda kv, k: Altering(kv, "submit_load", k, lose),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("staging_blocks", [3, 6])
def test_r08_r09_a_failed_load_beside_the_batch_is_recomputed(
    make_bench: MakeBench, new_kv: NewKv, failure: str, staging_blocks: int
) -> None:
    """Load k fails, for every k: with room for three blocks, it is half a layer."""
    token_ids = prompt(50)
    expected = make_bench(new_kv()).stored(token_ids, 10)
    block_bytes = 2 * 2 * BLOCK * 16 * 4
    for k in range(NUM_LAYERS * (6 // staging_blocks)):
        bench = make_bench(
            FAILURES[failure](new_kv(), k),
            load_timeout_s=0.15,
            max_background_loads=1,
            staging_bytes=2 * staging_blocks * block_bytes,
        )
        decoding = beside_a_decode(bench)
        answer = bench.run(token_ids, 10)
        assert answer.token_ids == expected.token_ids, k
        assert answer.reuse.recomputed
        bench.engine.abort(decoding.id)
        if failure == "block 3 gone" and staging_blocks == 6:
            assert answer.reuse.dram_tokens == 3 * BLOCK
        if failure != "never answered":
            bench.settle()


def test_r17_an_abort_of_a_load_beside_the_batch_frees_it(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    make_bench(new_kv()).stored(prompt(60))
    holding = Holding(new_kv(), "submit_load")
    bench = make_bench(holding)
    decoding = beside_a_decode(bench)
    request = bench.start(prompt(60))
    bench.wait(lambda: bench.engine.stats.loading == 1 and bool(holding.held))
    bench.engine.abort(request.id)
    assert request.result().finish == "abort"
    bench.engine.abort(decoding.id)
    bench.wait(lambda: bench.engine.stats.pages_referenced == 0)
    holding.let_go()
    bench.settle()


def test_more_loads_at_once_than_fit_the_batch(make_bench: MakeBench, new_kv: NewKv) -> None:
    stored = make_bench(new_kv())
    expected = [stored.stored(prompt(40 + number, number)).token_ids for number in range(12)]
    bench = make_bench(new_kv(), max_running=4, max_background_loads=4)
    decoding = beside_a_decode(bench)
    requests = [bench.start(prompt(40 + number, number)) for number in range(12)]
    for number, (request, tokens) in enumerate(zip(requests, expected, strict=True)):
        answer = request.result()
        assert answer.token_ids == tokens
        assert answer.reuse.dram_tokens == full_blocks(40 + number - 1)
    bench.engine.abort(decoding.id)
    bench.settle()
