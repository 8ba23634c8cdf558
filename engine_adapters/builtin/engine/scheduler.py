"""Iteration-level batching with chunked prefill (Orca, Sarathi-Serve): each step every decoding
sequence gets one token and prefills share the rest of the token budget.

Oldest first throughout. When pages run out the youngest running sequence is preempted: its pages
go back (full ones stay hittable) and it starts again from whatever is still cached. The oldest is
never preempted for a younger one and every sequence fits the pool alone, so all of them finish.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from moontide.kvstore import BlockKey

from ..errors import InvalidRequest
from .page_pool import PagePool
from .sequence import Phase, Sequence

KeysOf = Callable[[Seq[int]], list[BlockKey]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one step and one sequence may ask for."""

    block_tokens: int
    context_tokens: int
    max_batch_tokens: int
    idle_batch_tokens: int  # while nobody decodes, so that a long step delays no token
    max_running: int
    max_waiting: int

    def clip_output(self, num_prompt: int, max_tokens: int, num_pages: int) -> int:
        """Output tokens a prompt of this length can get, at most `max_tokens`. Raises
        InvalidRequest when it leaves no room for one."""
        pool_tokens = num_pages * self.block_tokens
        if num_prompt == 0:
            raise InvalidRequest("the prompt has 0 tokens; it must have at least 1")
        if num_prompt >= self.context_tokens:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens; the model's context is "
                f"{self.context_tokens} and must leave room for at least one more"
            )
        if num_prompt > pool_tokens:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens; this worker's KV pool holds {pool_tokens}: "
                "start it with a larger --hbm"
            )
        # The last output token is never computed, so it needs no room in the pool.
        return min(max_tokens, self.context_tokens - num_prompt, pool_tokens - num_prompt + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """`num_tokens` tokens of one sequence to compute in this step, from its `num_computed` on.
    `load`: blocks the store must deliver into the sequence's pages first, layer by layer.
    `store`: blocks that are whole after this step and not in the store yet."""

    sequence: Sequence
    start: int
    num_tokens: int
    load: range
    store: range

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Preempted sequences wait for a new lookup."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[Sequence, ...]


class Scheduler:
    """Decides who computes what; owns the page pool's accounting. Single-threaded, no clock."""

    def __init__(self, limits: Limits, pool: PagePool, keys_of: KeysOf) -> None:
        self.limits = limits
        self.pool = pool
        self.preemptions = 0
        self._keys_of = keys_of
        self._waiting: list[Sequence] = []  # oldest first; LOOKUP or WAITING
        self._running: list[Sequence] = []  # oldest first

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Seq[Sequence]:
        return self._running

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence in phase LOOKUP."""
        sequence.keys = self._keys_of(sequence.token_ids)
        self._waiting.append(sequence)

    def lookup_done(self, sequence: Sequence, found_blocks: int | None) -> None:
        """The store's answer; None when there was none in time."""
        if sequence.phase is Phase.LOOKUP:
            sequence.phase = Phase.WAITING
            sequence.found_blocks = found_blocks

    def finish(self, sequence: Sequence) -> None:
        """Ends it in whatever phase it is; its pages are free or hittable from now on."""
        if sequence.phase is Phase.FINISHED:
            return
        queue = self._running if sequence.phase is Phase.RUNNING else self._waiting
        queue.remove(sequence)
        self._drop_pages(sequence)
        sequence.phase = Phase.FINISHED

    def plan(self) -> StepPlan:
        """The next step; empty when nothing can run. Every chunk's pages are allocated."""
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        decoding = [s for s in self._running if s.is_decoding]
        budget = self.limits.max_batch_tokens if decoding else self.limits.idle_batch_tokens
        for sequence in decoding:
            if budget == 0 or sequence.phase is not Phase.RUNNING:
                continue
            if self._grow(sequence, preempted):
                chunks.append(self._chunk(sequence, 1))
                budget -= 1
        for sequence in [s for s in self._running if not s.is_decoding]:
            if budget:
                chunks.append(self._chunk(sequence, budget))
                budget -= chunks[-1].num_tokens
        if not preempted:
            self._admit_waiting(chunks, budget)
        return StepPlan(tuple(chunks), tuple(preempted))

    def computed(self, chunk: Chunk) -> None:
        """The chunk's KV, and what it loaded, is in its pages: full blocks become hittable."""
        sequence, size = chunk.sequence, self.limits.block_tokens
        first = chunk.load.start if chunk.load else chunk.start // size
        sequence.num_computed = chunk.stop
        for block in range(first, chunk.stop // size):
            page = sequence.pages[block]
            if self.pool.is_writable(page):
                self.pool.publish(page, sequence.keys[block])
        if sequence.num_output == 0 and chunk.load:
            sequence.reuse.dram_tokens = len(chunk.load) * size

    def load_failed(self, chunk: Chunk, valid_blocks: int) -> None:
        """Only the first `valid_blocks` of the chunk's load arrived whole: the rest, and what was
        computed on top, is computed again."""
        sequence, size = chunk.sequence, self.limits.block_tokens
        loaded = chunk.load[:valid_blocks]
        for block in loaded:
            self.pool.publish(sequence.pages[block], sequence.keys[block])
        sequence.num_computed = (chunk.load.start + len(loaded)) * size
        sequence.stored_blocks = min(sequence.stored_blocks, chunk.load.start + len(loaded))
        sequence.reuse.recomputed = True
        if sequence.num_output == 0:
            sequence.reuse.dram_tokens = len(loaded) * size

    def append(self, sequence: Sequence, token_id: int) -> None:
        """One more output token. A block it fills gets its key."""
        sequence.token_ids.append(token_id)
        if sequence.num_tokens % self.limits.block_tokens == 0:
            sequence.keys = self._keys_of(sequence.token_ids)

    def check_integrity(self) -> None:
        size = self.limits.block_tokens
        for sequence in self._waiting:
            assert sequence.phase in (Phase.LOOKUP, Phase.WAITING)
            assert not sequence.pages
            assert sequence.num_computed == 0
        for sequence in self._running:
            assert sequence.phase is Phase.RUNNING
            assert sequence.num_computed < sequence.num_tokens
            assert len(sequence.pages) * size >= sequence.num_computed
            assert len(sequence.keys) == sequence.num_tokens // size
        assert len(self._running) <= self.limits.max_running
        self.pool.check_integrity(sequence.pages for sequence in self._running)

    def _grow(self, sequence: Sequence, preempted: list[Sequence]) -> bool:
        """Makes room for the next token, preempting younger sequences; False when `sequence`
        itself had to go."""
        if len(sequence.pages) * self.limits.block_tokens > sequence.num_computed:
            return True
        while (pages := self.pool.allocate(1)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        sequence.pages += pages
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._running.remove(victim)
        self._drop_pages(victim)
        victim.phase = Phase.LOOKUP
        self._waiting.insert(0, victim)
        self.preemptions += 1

    def _drop_pages(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0
        sequence.found_blocks = None

    def _admit_waiting(self, chunks: list[Chunk], budget: int) -> None:
        for sequence in [s for s in self._waiting if s.phase is Phase.WAITING]:
            if budget == 0 or len(self._running) >= self.limits.max_running:
                return
            chunk = self._admit(sequence, budget)
            if chunk is None:
                return  # first come, first served: a younger, smaller one does not overtake
            chunks.append(chunk)
            budget -= chunk.num_tokens

    def _admit(self, sequence: Sequence, budget: int) -> Chunk | None:
        """At least the last token is computed, even when every block is cached: its logits are
        needed, and they are never computed into a shared page."""
        size = self.limits.block_tokens
        usable = (sequence.num_tokens - 1) // size
        shared = self.pool.match(sequence.keys[:usable])
        found = min(sequence.found_blocks or 0, usable)
        load = range(len(shared), max(len(shared), found))
        self.pool.acquire(shared)
        fresh = self.pool.allocate(-(-sequence.num_tokens // size) - len(shared))
        if fresh is None:
            self.pool.release(shared)
            return None
        self._waiting.remove(sequence)
        self._running.append(sequence)
        self._running.sort(key=lambda running: running.sequence_id)
        sequence.phase = Phase.RUNNING
        sequence.pages = shared + fresh
        sequence.num_computed = load.stop * size
        # Without an answer nothing is known: what the pool had is then not offered to the store.
        known = sequence.found_blocks
        sequence.stored_blocks = load.stop if known is None else known
        if sequence.num_output == 0:
            sequence.reuse.hbm_tokens = len(shared) * size
            sequence.reuse.dram_tokens = 0  # it may have been preempted after a load
        return self._chunk(sequence, budget, load)

    def _chunk(self, sequence: Sequence, budget: int, load: range = range(0)) -> Chunk:
        """At most `budget` tokens. What the store lacks is offered to it bit by bit, so that a
        step's copies stay within proportion to its compute."""
        size, start = self.limits.block_tokens, sequence.num_computed
        count = min(sequence.num_tokens - start, budget)
        most = sequence.stored_blocks + max(self.limits.max_batch_tokens, count) // size + 1
        whole = (start + count) // size
        store = range(sequence.stored_blocks, max(sequence.stored_blocks, min(whole, most)))
        return Chunk(sequence, start, count, load, store)
