"""Batching decisions, without tensors or threads."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings, strategies

from moontide.engine_adapters.builtin.engine.page_pool import PagePool
from moontide.engine_adapters.builtin.engine.scheduler import Limits, Scheduler, StepPlan
from moontide.engine_adapters.builtin.engine.sequence import Phase, Sequence
from moontide.engine_adapters.builtin.errors import InvalidRequest
from moontide.engine_adapters.builtin.model import Sampling
from moontide.kvstore import BlockKey, Group, KVLayout, Namespace, block_keys

BLOCK = 4
NAMESPACE = Namespace(
    weights_id="w",
    layout=KVLayout((Group("full", 1, 1, 4, "float32"),)),
    tokenizer_digest="t",
    block_tokens=BLOCK,
)


def keys_of(token_ids: Seq[int]) -> list[BlockKey]:
    return block_keys(NAMESPACE, token_ids)


def limits(max_batch_tokens: int = 16, max_running: int = 8, idle_batch_tokens: int = 16) -> Limits:
    return Limits(
        block_tokens=BLOCK,
        context_tokens=64,
        max_batch_tokens=max_batch_tokens,
        idle_batch_tokens=idle_batch_tokens,
        max_running=max_running,
        max_waiting=64,
    )


def scheduler(num_pages: int = 32, **kwargs: int) -> Scheduler:
    return Scheduler(limits(**kwargs), PagePool(num_pages), keys_of)


def arrive(core: Scheduler, number: int, prompt: Seq[int], found: int | None = 0) -> Sequence:
    sequence = Sequence(number, tuple(prompt), Sampling(max_tokens=4))
    core.add(sequence)
    core.lookup_done(sequence, found)
    return sequence


def run_step(core: Scheduler) -> StepPlan:
    """Computes the plan; token ids are made up from the position."""
    plan = core.plan()
    for chunk in plan.chunks:
        core.computed(chunk)
        if chunk.stop == chunk.sequence.num_tokens:
            core.append(chunk.sequence, 1000 + chunk.sequence.num_tokens)
    for sequence in plan.preempted:
        core.lookup_done(sequence, None)
    core.check_integrity()
    return plan


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    core = scheduler()
    short = arrive(core, 1, range(3))
    run_step(core)
    long = arrive(core, 2, range(100, 130))
    first, second = run_step(core), run_step(core)
    assert [(c.sequence, c.num_tokens) for c in first.chunks] == [(short, 1), (long, 15)]
    assert [(c.sequence, c.start, c.num_tokens) for c in second.chunks] == [
        (short, 4, 1),
        (long, 15, 15),
    ]


def test_a_prompt_that_delays_nobody_is_computed_in_larger_chunks() -> None:
    core = scheduler(idle_batch_tokens=40)
    arrive(core, 1, range(30))
    (alone,) = run_step(core).chunks
    assert (alone.num_tokens, alone.store) == (30, range(7))
    arrive(core, 2, range(100, 130))
    assert [chunk.num_tokens for chunk in run_step(core).chunks] == [1, 15]


def test_a_sequence_waits_for_its_lookup_without_blocking_others() -> None:
    core = scheduler()
    pending = Sequence(1, tuple(range(8)), Sampling())
    core.add(pending)
    ready = arrive(core, 2, range(8))
    assert [chunk.sequence for chunk in core.plan().chunks] == [ready]
    assert pending.phase is Phase.LOOKUP


def test_found_blocks_are_loaded_and_the_rest_computed() -> None:
    core = scheduler()
    sequence = arrive(core, 1, range(14), found=2)
    (chunk,) = core.plan().chunks
    assert (chunk.load, chunk.start, chunk.num_tokens) == (range(2), 8, 6)
    assert chunk.store == range(2, 3)
    core.computed(chunk)
    assert sequence.reuse.dram_tokens == 8
    assert core.pool.match(sequence.keys) == sequence.pages[:3]


def test_blocks_on_the_device_come_before_blocks_in_the_store() -> None:
    core = scheduler()
    first = arrive(core, 1, range(9))
    run_step(core)
    core.finish(first)
    second = arrive(core, 2, range(18), found=4)
    (chunk,) = core.plan().chunks
    assert chunk.load == range(2, 4)
    assert second.reuse.hbm_tokens == 8
    assert second.pages[:2] == core.pool.match(second.keys[:2])


@pytest.mark.parametrize("found", [0, 2, 3])
def test_the_last_token_is_always_computed(found: int) -> None:
    core = scheduler()
    arrive(core, 1, range(12), found=found)
    (chunk,) = core.plan().chunks
    assert chunk.load.stop <= 2
    assert chunk.stop == 12


def test_r04_the_last_block_is_recomputed_into_a_fresh_page() -> None:
    core = scheduler()
    first = arrive(core, 1, range(12))
    run_step(core)
    second = arrive(core, 2, range(12))
    plan = core.plan()
    (chunk,) = [chunk for chunk in plan.chunks if chunk.sequence is second]
    assert (chunk.start, chunk.num_tokens) == (8, 4)
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    assert core.pool.is_writable(second.pages[2])


def test_r09_a_failed_load_keeps_the_blocks_before_it() -> None:
    core = scheduler()
    sequence = arrive(core, 1, range(20), found=4)
    (chunk,) = core.plan().chunks
    core.load_failed(chunk, valid_blocks=1)
    core.check_integrity()
    assert sequence.reuse.recomputed
    assert sequence.reuse.dram_tokens == BLOCK
    (again,) = core.plan().chunks
    assert (again.start, again.load) == (4, range(0))
    assert again.store == range(1, 5)


def test_blocks_the_store_lost_are_offered_again() -> None:
    core = scheduler()
    first = arrive(core, 1, range(20))
    run_step(core)
    run_step(core)
    core.finish(first)
    arrive(core, 2, range(20), found=1)
    (chunk,) = core.plan().chunks
    assert chunk.load == range(4, 4)
    assert chunk.store == range(1, 5)


def test_the_youngest_gives_way_and_still_ends() -> None:
    core = scheduler(num_pages=6)
    old = arrive(core, 1, range(8))
    young = arrive(core, 2, range(50, 58))
    preempted: list[Sequence] = []
    for _ in range(40):
        preempted += run_step(core).preempted
        for sequence in (old, young):
            if sequence.num_output >= 12:
                core.finish(sequence)
    assert set(preempted) == {young}
    assert old.phase is young.phase is Phase.FINISHED
    assert core.pool.num_referenced == 0


def test_what_a_preempted_sequence_had_loaded_is_counted_once() -> None:
    core = scheduler(num_pages=6, max_batch_tokens=4, idle_batch_tokens=4)
    elder = arrive(core, 1, range(7))
    run_step(core)
    younger = arrive(core, 2, range(100, 116), found=2)
    for _ in range(12):
        run_step(core)
        if core.preemptions:
            break
    assert younger.phase is Phase.WAITING
    assert younger.reuse.dram_tokens == 2 * BLOCK
    core.finish(elder)
    run_step(core)
    assert younger.reuse.hbm_tokens >= 2 * BLOCK
    assert younger.reuse.cached_tokens < len(younger.prompt_ids)


def test_a_prompt_beyond_context_or_pool_is_refused_with_both_numbers() -> None:
    bounds = limits()
    with pytest.raises(InvalidRequest, match=r"64 tokens.*context is 64"):
        bounds.clip_output(64, 1, num_pages=100)
    with pytest.raises(InvalidRequest, match=r"41 tokens.*holds 40"):
        bounds.clip_output(41, 1, num_pages=10)
    with pytest.raises(InvalidRequest, match="0 tokens"):
        bounds.clip_output(0, 1, num_pages=10)
    assert bounds.clip_output(40, 100, num_pages=10) == 1
    assert bounds.clip_output(60, 100, num_pages=100) == 4


REQUEST = strategies.tuples(
    strategies.integers(1, 30),  # prompt length
    strategies.integers(0, 3),  # which document
    strategies.integers(1, 12),  # output tokens
    strategies.integers(0, 8),  # blocks the store claims
    strategies.integers(0, 3),  # what goes wrong: 1 abort while waiting, 2 abort later, 3 bad load
)


@settings(max_examples=150, deadline=None)
@given(
    requests=strategies.lists(REQUEST, min_size=1, max_size=12),
    num_pages=strategies.integers(10, 24),
    budget=strategies.integers(1, 24),
    max_running=strategies.integers(1, 6),
)
def test_r22_every_request_ends_and_everything_is_given_back(
    requests: list[tuple[int, int, int, int, int]], num_pages: int, budget: int, max_running: int
) -> None:
    core = Scheduler(limits(budget, max_running, 2 * budget), PagePool(num_pages), keys_of)
    wanted: dict[Sequence, int] = {}
    doomed: list[Sequence] = []
    for number, (length, document, output, found, fault) in enumerate(requests):
        prompt = range(100 * document, 100 * document + length)
        sequence = arrive(core, number, prompt, found=min(found, length // BLOCK))
        wanted[sequence] = core.limits.clip_output(length, output, num_pages)
        if fault == 1:
            core.finish(sequence)
        if fault == 2:
            doomed.append(sequence)
    broken = {n for n, request in enumerate(requests) if request[4] == 3}
    for _ in range(3000):
        if all(sequence.phase is Phase.FINISHED for sequence in wanted):
            break
        _step_with_faults(core, wanted, doomed, broken)
    assert all(sequence.phase is Phase.FINISHED for sequence in wanted)
    assert core.pool.num_referenced == 0


def _step_with_faults(
    core: Scheduler, wanted: dict[Sequence, int], doomed: list[Sequence], broken: set[int]
) -> None:
    beside_decodes = any(sequence.is_decoding for sequence in core.running)
    plan = core.plan()
    budget = core.limits.max_batch_tokens if beside_decodes else core.limits.idle_batch_tokens
    assert sum(chunk.num_tokens for chunk in plan.chunks) <= budget
    for chunk in plan.chunks:
        sequence = chunk.sequence
        first_written = chunk.start // BLOCK
        for page in sequence.pages[first_written : -(-chunk.stop // BLOCK)]:
            assert core.pool.is_writable(page)  # R4
        if chunk.load and sequence.sequence_id in broken:
            core.load_failed(chunk, valid_blocks=len(chunk.load) // 2)
            continue
        core.computed(chunk)
        if chunk.stop == sequence.num_tokens:
            core.append(sequence, 1000 + sequence.num_tokens)
        if sequence.num_output >= wanted[sequence] or sequence in doomed:
            core.finish(sequence)
    for sequence in plan.preempted:
        core.lookup_done(sequence, 1)
    core.check_integrity()
