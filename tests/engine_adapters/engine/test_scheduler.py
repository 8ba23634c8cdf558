"""Batching decisions, without tensors or threads."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given, settings, strategies

from moontide.engine_adapters.builtin.engine.page_pool import PagePool
from moontide.engine_adapters.builtin.engine.plan import Chunk, Limits, StepPlan
from moontide.engine_adapters.builtin.engine.scheduler import Scheduler
from moontide.engine_adapters.builtin.engine.sequence import (
    Found,
    Phase,
    ReceiveHandoff,
    Sequence,
    Source,
)
from moontide.engine_adapters.builtin.errors import InvalidRequest
from moontide.engine_adapters.builtin.model import Sampling
from moontide.kvstore import BlockKey, Group, KVLayout, Namespace, Tier, block_keys

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
    core.lookup_done(sequence, None if found is None else in_dram(found))
    return sequence


def in_dram(num_blocks: int) -> Found:
    return Found(0, (Source(Tier.DRAM, "shm"),) * num_blocks)


def receive(core: Scheduler, number: int, prompt: Seq[int]) -> Sequence:
    """A hand-off that this worker is to decode."""
    handoff = ReceiveHandoff(BlockKey(bytes(16)), "store")
    sequence = Sequence(number, tuple(prompt), Sampling(max_tokens=4), handoff)
    core.add(sequence)
    return sequence


def fetched(sequence: Sequence, transport: str = "tcp") -> None:
    """The store has a place for all it is to be given."""
    load = sequence.loading
    assert load is not None
    sequence.found = Found(load.start, (Source(Tier.DRAM, transport),) * len(load))


def run_step(core: Scheduler) -> StepPlan:
    """Computes the plan, and ends its loads; token ids are made up from the position."""
    plan = core.plan()
    for sequence in plan.loads:
        assert sequence.loading is not None
        core.loaded(sequence, len(sequence.loading))
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
    assert bounds.room_tokens(10) == 41  # the last token is never computed
    assert bounds.room_tokens(100) == 64


def test_beside_a_running_batch_pages_are_filled_in_the_background() -> None:
    core = scheduler()
    elder = arrive(core, 1, range(3))
    run_step(core)
    younger = arrive(core, 2, range(100, 114), found=2)
    plan = core.plan()
    assert [chunk.sequence for chunk in plan.chunks] == [elder]
    assert (plan.loads, younger.phase, younger.loading) == ((younger,), Phase.LOADING, range(2))
    core.check_integrity()
    assert core.pool.match(younger.keys) == []
    core.loaded(younger, 2)
    core.check_integrity()
    assert core.pool.match(younger.keys) == younger.pages[:2]
    assert younger.reuse.dram_tokens == 8
    (_, chunk) = core.plan().chunks
    assert (chunk.sequence, chunk.start, chunk.num_tokens) == (younger, 8, 6)
    assert (chunk.load, chunk.store) == (range(0), range(2, 3))


def test_a_step_never_waits_for_another_node() -> None:
    core = scheduler()
    sequence = arrive(core, 1, range(14), found=0)
    sequence.found = Found(0, (Source(Tier.DRAM, "shm"), Source(Tier.DRAM, "tcp")))
    plan = core.plan()
    assert (plan.chunks, plan.loads) == ((), (sequence,))


def test_r09_a_background_load_that_failed_keeps_the_blocks_before() -> None:
    core = scheduler()
    arrive(core, 1, range(3))
    run_step(core)
    sequence = arrive(core, 2, range(100, 120), found=4)
    core.plan()
    core.loaded(sequence, 1)
    assert sequence.reuse.recomputed
    assert sequence.reuse.dram_tokens == BLOCK
    (_, chunk) = core.plan().chunks
    assert (chunk.sequence, chunk.start, chunk.store) == (sequence, 4, range(1, 4))


@pytest.mark.parametrize("token_first", [False, True])
def test_a_handoff_joins_when_whole_and_with_token_1(token_first: bool) -> None:
    core = scheduler()
    sequence = receive(core, 1, range(10))
    (loading,) = core.plan().loads
    assert (loading, sequence.loading, len(sequence.pages)) == (sequence, range(3), 3)
    assert core.plan().chunks == ()
    if token_first:
        core.give_first_token(sequence, 77)
    fetched(sequence)
    core.check_integrity()
    core.loaded(sequence, 3)
    core.check_integrity()
    if not token_first:
        assert core.plan().chunks == ()
        core.give_first_token(sequence, 77)
    core.check_integrity()
    (chunk,) = core.plan().chunks
    assert (chunk.start, chunk.num_tokens, sequence.token_ids[-1]) == (10, 1, 77)
    assert (sequence.is_decoding, sequence.stored_blocks) == (True, 2)
    assert (sequence.reuse.dram_tokens, sequence.reuse.recomputed) == (10, False)


def test_what_a_handoff_lacks_is_computed_with_token_1() -> None:
    core = scheduler()
    sequence = receive(core, 1, range(10))
    core.plan()
    fetched(sequence)
    core.loaded(sequence, 1)
    core.give_first_token(sequence, 77)
    (chunk,) = core.plan().chunks
    assert (chunk.start, chunk.num_tokens) == (4, 7)
    assert (sequence.reuse.dram_tokens, sequence.reuse.recomputed) == (4, True)


def test_a_handoff_uses_what_the_device_has() -> None:
    core = scheduler()
    first = arrive(core, 1, range(9))
    run_step(core)
    core.finish(first)
    sequence = receive(core, 2, range(8))
    core.plan()
    assert sequence.loading == range(2, 2)
    core.loaded(sequence, 0)
    core.give_first_token(sequence, 77)
    (chunk,) = core.plan().chunks
    assert (chunk.start, chunk.num_tokens, sequence.reuse.hbm_tokens) == (8, 1, 8)
    assert not sequence.reuse.recomputed


def test_r22_a_handoff_without_token_1_gives_way_to_its_elders_and_is_received_again() -> None:
    core = scheduler(num_pages=6)
    elder = arrive(core, 1, range(8))
    run_step(core)
    sequence = receive(core, 2, range(50, 58))
    run_step_without_loads(core)
    assert sequence.phase is Phase.LOADING
    while sequence.phase is Phase.LOADING:
        assert elder.num_output < 12
        run_step_without_loads(core)
    assert (sequence.phase, sequence.pages, sequence.loading) == (Phase.WAITING, [], None)
    core.give_first_token(sequence, 77)
    core.finish(elder)
    (again,) = core.plan().loads
    fetched(again)
    core.loaded(again, len(again.loading or ()))
    assert core.plan().chunks[0].num_tokens == 1


def run_step_without_loads(core: Scheduler) -> None:
    for chunk in core.plan().chunks:
        core.computed(chunk)
        core.append(chunk.sequence, 1000 + chunk.sequence.num_tokens)
    core.check_integrity()


REQUEST = strategies.tuples(
    strategies.integers(1, 30),  # prompt length
    strategies.integers(0, 3),  # which document
    strategies.integers(1, 12),  # output tokens
    strategies.integers(0, 8),  # blocks the store claims
    strategies.integers(0, 3),  # what goes wrong: 1 abort while waiting, 2 abort later, 3 bad load
    strategies.sampled_from(["plain", "remote", "handoff"]),
)


@settings(max_examples=150, deadline=None)
@given(
    requests=strategies.lists(REQUEST, min_size=1, max_size=12),
    num_pages=strategies.integers(10, 24),
    budget=strategies.integers(1, 24),
    max_running=strategies.integers(1, 6),
    slowness=strategies.integers(0, 5),
)
def test_r22_every_request_ends_and_everything_is_given_back(
    requests: list[tuple[int, int, int, int, int, str]],
    num_pages: int,
    budget: int,
    max_running: int,
    slowness: int,
) -> None:
    """Loads end, and first tokens come, `slowness` steps late."""
    world = World(Scheduler(limits(budget, max_running, 2 * budget), PagePool(num_pages), keys_of))
    world.slowness = slowness
    for number, (length, document, output, found, fault, kind) in enumerate(requests):
        prompt = range(100 * document, 100 * document + length)
        world.arrive(number, prompt, output, min(found, length // BLOCK), fault, kind)
    for _ in range(3000):
        if world.all_ended():
            break
        world.step()
    assert world.all_ended()
    assert world.core.pool.num_referenced == 0


class World:
    """Everything around a scheduler, with faults."""

    def __init__(self, core: Scheduler) -> None:
        self.core = core
        self.slowness = 0
        self.now = 0
        self.wanted: dict[Sequence, int] = {}
        self.doomed: list[Sequence] = []
        self.broken: list[Sequence] = []
        self.loads: dict[Sequence, int] = {}  # when they end
        self.tokens: dict[Sequence, int] = {}  # when token 1 comes

    def arrive(
        self, number: int, prompt: Seq[int], output: int, found: int, fault: int, kind: str
    ) -> None:
        if kind == "handoff":
            sequence = receive(self.core, number, prompt)
        else:
            sequence = arrive(self.core, number, prompt, found)
            transport = "tcp" if kind == "remote" else "shm"
            sequence.found = Found(0, (Source(Tier.DRAM, transport),) * found)
        self.wanted[sequence] = self.core.limits.clip_output(
            len(prompt), output, self.core.pool.num_pages
        )
        if fault == 1:
            self.core.finish(sequence)
        elif fault == 2:
            self.doomed.append(sequence)
        elif fault == 3:
            self.broken.append(sequence)

    def all_ended(self) -> bool:
        return all(sequence.phase is Phase.FINISHED for sequence in self.wanted)

    def step(self) -> None:
        self.now += 1
        self._end_loads()
        beside_decodes = any(sequence.is_decoding for sequence in self.core.running)
        plan = self.core.plan()
        limits = self.core.limits
        budget = limits.max_batch_tokens if beside_decodes else limits.idle_batch_tokens
        assert sum(chunk.num_tokens for chunk in plan.chunks) <= budget
        for sequence in plan.preempted:
            self.loads.pop(sequence, None)
            self.core.lookup_done(sequence, in_dram(min(1, len(sequence.keys))))
        for sequence in plan.loads:
            self._check_writable(sequence, sequence.loading or range(0))
            self.loads[sequence] = self.now + self.slowness
            if sequence.is_received:
                fetched(sequence)
                self.tokens.setdefault(sequence, self.now + self.slowness // 2)
        for chunk in plan.chunks:
            self._compute(chunk)
        self.core.check_integrity()

    def _end_loads(self) -> None:
        for sequence in [s for s, due in self.loads.items() if due <= self.now]:
            del self.loads[sequence]
            assert sequence.loading is not None
            blocks = len(sequence.loading) // (2 if sequence in self.broken else 1)
            if sequence in self.doomed:
                self.core.finish(sequence)
            else:
                self.core.loaded(sequence, blocks)
        for sequence in [s for s, due in self.tokens.items() if due <= self.now]:
            del self.tokens[sequence]
            if self.wanted[sequence] == 1:
                self.core.finish(sequence)
            elif sequence.is_received and sequence.phase is not Phase.FINISHED:
                self.core.give_first_token(sequence, 999)
        for sequence in [s for s in self.loads if s.phase is Phase.FINISHED]:
            del self.loads[sequence]

    def _compute(self, chunk: Chunk) -> None:
        core, sequence = self.core, chunk.sequence
        self._check_writable(sequence, range(chunk.start // BLOCK, -(-chunk.stop // BLOCK)))
        if chunk.load and sequence in self.broken:
            core.load_failed(chunk, valid_blocks=len(chunk.load) // 2)
            return
        core.computed(chunk)
        if chunk.stop == sequence.num_tokens:
            core.append(sequence, 1000 + sequence.num_tokens)
        if sequence.num_output >= self.wanted[sequence] or sequence in self.doomed:
            core.finish(sequence)

    def _check_writable(self, sequence: Sequence, blocks: range) -> None:
        """R4"""
        for page in sequence.pages[blocks.start : blocks.stop]:
            assert self.core.pool.is_writable(page)
