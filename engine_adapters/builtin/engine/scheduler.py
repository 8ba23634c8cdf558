"""Iteration-level batching with chunked prefill (Orca, Sarathi-Serve): each step every decoding
sequence gets one token and prefills share the rest of the token budget.

Oldest first throughout. When pages run out the youngest sequence that holds some is preempted: they
go back (full ones stay hittable) and it starts again from whatever is still cached. The oldest is
never preempted for a younger one and every sequence fits the pool alone, so all of them finish.

A sequence with blocks to load joins an empty batch at once: its layers are loaded while it
computes. Beside a running batch, which must not wait, its pages are filled in the background first;
so are they when the blocks come from another node, which can be arbitrarily slow, unless nobody
else is here and that node's pace is known (load_advisor.py).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from moontide.kvstore import BlockKey

from .load_decision import Company, LoadChooser, LoadDecision, TakeAll
from .page_pool import PagePool
from .plan import Chunk, Limits, StepPlan
from .sequence import Found, Phase, SendHandoff, Sequence

KeysOf = Callable[[Seq[int]], list[BlockKey]]


class Scheduler:
    """Decides who computes what; owns the page pool's accounting. Single-threaded, no clock."""

    def __init__(
        self,
        limits: Limits,
        pool: PagePool,
        keys_of: KeysOf,
        chooser: LoadChooser | None = None,
    ) -> None:
        self.limits = limits
        self.pool = pool
        self.preemptions = 0
        self._keys_of = keys_of
        self._chooser = chooser or TakeAll()
        self._waiting: list[Sequence] = []  # oldest first; LOOKUP or WAITING
        self._loading: list[Sequence] = []
        self._running: list[Sequence] = []  # oldest first

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Seq[Sequence]:
        return self._running

    # -- what happens to sequences ----------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence: in phase LOOKUP, or WAITING if its blocks come by a hand-off."""
        sequence.keys = self._keys_of(sequence.token_ids)
        sequence.phase = Phase.WAITING if sequence.is_received else Phase.LOOKUP
        self._waiting.append(sequence)

    def lookup_done(self, sequence: Sequence, found: Found | None) -> None:
        """The store's answer; None when there was none in time."""
        if sequence.phase is Phase.LOOKUP:
            sequence.phase = Phase.WAITING
            sequence.found = found

    def loaded(self, sequence: Sequence, valid_blocks: int) -> None:
        """The background load has ended with so many leading blocks in the pages; what is missing
        will be computed."""
        load = sequence.loading
        assert load is not None
        sequence.loading = None
        found = sequence.found.stop if sequence.found else 0
        sequence.stored_blocks = min(len(sequence.keys), max(load.start, found))
        self._keep(sequence, load, valid_blocks)
        self._join_if_ready(sequence)

    def give_first_token(self, sequence: Sequence, token_id: int) -> None:
        """Token 1 of a hand-off."""
        sequence.first_token = token_id
        if sequence.phase is Phase.LOADING:
            self._join_if_ready(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Ends it in whatever phase it is; its pages are free or hittable from now on."""
        if sequence.phase is Phase.FINISHED:
            return
        self._queue_of(sequence).remove(sequence)
        self._drop_pages(sequence)
        sequence.phase = Phase.FINISHED

    def computed(self, chunk: Chunk) -> None:
        """The chunk's KV, and what it loaded, is in its pages: full blocks become hittable."""
        sequence, size = chunk.sequence, self.limits.block_tokens
        first = chunk.load.start if chunk.load else chunk.start // size
        sequence.num_computed = chunk.stop
        self._publish(sequence, range(first, chunk.stop // size))
        if chunk.load:
            self._count_loaded(sequence, chunk.load)

    def load_failed(self, chunk: Chunk, valid_blocks: int) -> None:
        """Only the first `valid_blocks` of the chunk's load arrived whole: the rest, and what was
        computed on top, is computed again."""
        self._keep(chunk.sequence, chunk.load, valid_blocks)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """One more output token. A block it fills gets its key."""
        sequence.token_ids.append(token_id)
        if sequence.num_tokens % self.limits.block_tokens == 0:
            sequence.keys = self._keys_of(sequence.token_ids)

    # -- the next step ------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step; empty when nothing can run. Every chunk's pages are allocated."""
        chunks: list[Chunk] = []
        preempted: list[Sequence] = []
        loads: list[Sequence] = []
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
            self._admit_waiting(chunks, loads, budget)
        return StepPlan(tuple(chunks), tuple(preempted), tuple(loads))

    def check_integrity(self) -> None:
        size = self.limits.block_tokens
        for sequence in self._waiting:
            assert sequence.phase in (Phase.LOOKUP, Phase.WAITING)
            assert not sequence.pages
            assert sequence.num_computed == 0
            assert sequence.loading is None
        for sequence in self._loading:
            assert sequence.phase is Phase.LOADING
            assert sequence.loading is not None or sequence.is_received
            assert len(sequence.pages) * size >= sequence.num_tokens
        for sequence in self._running:
            assert sequence.phase is Phase.RUNNING
            assert sequence.num_computed < sequence.num_tokens
            assert len(sequence.pages) * size >= sequence.num_computed
            assert len(sequence.keys) == sequence.num_tokens // size
        held = self._running + self._loading
        assert len(held) <= self.limits.max_running
        self.pool.check_integrity(sequence.pages for sequence in held)

    def _grow(self, sequence: Sequence, preempted: list[Sequence]) -> bool:
        """Makes room for the next token, preempting younger sequences; False when `sequence`
        itself had to go."""
        if len(sequence.pages) * self.limits.block_tokens > sequence.num_computed:
            return True
        while (pages := self.pool.allocate(1)) is None:
            victim = max(self._running + self._loading, key=lambda held: held.sequence_id)
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        sequence.pages += pages
        return True

    def _preempt(self, victim: Sequence) -> None:
        """A hand-off that has not joined the batch is received once more; any other looks up what
        there is."""
        self._queue_of(victim).remove(victim)
        victim.phase = Phase.WAITING if victim.is_received else Phase.LOOKUP
        self._drop_pages(victim)
        self._waiting.insert(0, victim)
        self.preemptions += 1

    def _queue_of(self, sequence: Sequence) -> list[Sequence]:
        if sequence.phase is Phase.RUNNING:
            return self._running
        return self._loading if sequence.phase is Phase.LOADING else self._waiting

    def _drop_pages(self, sequence: Sequence) -> None:
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0
        sequence.found = sequence.loading = sequence.estimate = None

    # -- admission ----------------------------------------------------------------------

    def _admit_waiting(self, chunks: list[Chunk], loads: list[Sequence], budget: int) -> None:
        """First come, first served: a younger, smaller one does not overtake."""
        for sequence in [s for s in self._waiting if s.phase is Phase.WAITING]:
            if len(self._running) + len(self._loading) >= self.limits.max_running:
                return
            shared = self.pool.match(sequence.keys[: self._num_usable(sequence)])
            decision = self._decide(sequence, len(shared))
            load = decision.blocks
            in_background = sequence.is_received or (bool(load) and not decision.overlaps)
            if not (budget or in_background) or not self._take_pages(sequence, shared):
                return
            self._waiting.remove(sequence)
            self._admit(sequence, decision)
            if in_background:
                sequence.phase, sequence.loading = Phase.LOADING, load
                self._loading.append(sequence)
                loads.append(sequence)
            else:
                self._run(sequence)
                sequence.num_computed = load.stop * self.limits.block_tokens
                chunks.append(self._chunk(sequence, budget, load))
                budget -= chunks[-1].num_tokens

    def _num_usable(self, sequence: Sequence) -> int:
        """Full blocks that need not be computed. At least the last token is computed, even when
        every block is cached: its logits are needed, and they are never computed into a shared
        page. In a hand-off that token is yet to come."""
        if sequence.is_received:
            return len(sequence.keys)
        return (sequence.num_tokens - 1) // self.limits.block_tokens

    def _decide(self, sequence: Sequence, num_shared: int) -> LoadDecision:
        """Blocks that others must deliver; of a hand-off also the one that is not full."""
        if sequence.is_received:
            stop = -(-sequence.num_tokens // self.limits.block_tokens)
            return LoadDecision(range(num_shared, stop))
        found = sequence.found.stop if sequence.found else 0
        load = range(num_shared, max(num_shared, min(found, self._num_usable(sequence))))
        return self._chooser.choose(sequence, load, self._company())

    def _company(self) -> Company:
        """Of who is being admitted."""
        if self._running:
            return Company.BATCH
        return Company.NEWCOMERS if self._loading or len(self._waiting) > 1 else Company.NOBODY

    def _admit(self, sequence: Sequence, decision: LoadDecision) -> None:
        """What is computed although it was found is offered to the store: others have it, or it
        was too slow to have it here."""
        self._chooser.admitted(decision)
        sequence.estimate = decision.estimate
        if decision.num_forgone:
            sequence.stored_blocks = min(sequence.stored_blocks, decision.blocks.stop)

    def _take_pages(self, sequence: Sequence, shared: list[int]) -> bool:
        """The shared pages and new ones for all its tokens, and for token 1 of a hand-off."""
        size = self.limits.block_tokens
        num_tokens = sequence.num_tokens
        if sequence.is_received:
            num_tokens = min(num_tokens + 1, self.pool.num_pages * size)
        self.pool.acquire(shared)
        fresh = self.pool.allocate(-(-num_tokens // size) - len(shared))
        if fresh is None:
            self.pool.release(shared)
            return False
        sequence.pages = shared + fresh
        sequence.num_computed = len(shared) * size
        # Without an answer nothing is known: what the pool had is then not offered to the store.
        sequence.stored_blocks = sequence.found.stop if sequence.found else len(shared)
        if sequence.num_output == 0:
            sequence.reuse.hbm_tokens = len(shared) * size
            sequence.reuse.loaded_tokens.clear()  # it may have been preempted after a load
        return True

    def _run(self, sequence: Sequence) -> None:
        sequence.phase = Phase.RUNNING
        self._running.append(sequence)
        self._running.sort(key=lambda running: running.sequence_id)

    def _join_if_ready(self, sequence: Sequence) -> None:
        if sequence.loading is not None or (sequence.is_received and sequence.first_token is None):
            return
        self._loading.remove(sequence)
        self._run(sequence)
        if sequence.first_token is not None:
            self.append(sequence, sequence.first_token)
            sequence.first_token = sequence.handoff = None

    # -- blocks -------------------------------------------------------------------------

    def _keep(self, sequence: Sequence, load: range, valid_blocks: int) -> None:
        """Of `load`, the first `valid_blocks` are in the pages; nothing after them counts."""
        kept = load[:valid_blocks]
        stop = load.start + len(kept)
        sequence.num_computed = min(stop * self.limits.block_tokens, sequence.num_tokens)
        self._publish(sequence, range(kept.start, min(stop, len(sequence.keys))))
        if len(kept) < len(load):
            sequence.stored_blocks = min(sequence.stored_blocks, stop)
            sequence.reuse.recomputed = True
        self._count_loaded(sequence, kept)

    def _publish(self, sequence: Sequence, blocks: range) -> None:
        for block in blocks:
            page = sequence.pages[block]
            if self.pool.is_writable(page):
                self.pool.publish(page, sequence.keys[block])

    def _count_loaded(self, sequence: Sequence, blocks: range) -> None:
        if sequence.num_output or sequence.found is None:
            return
        size = self.limits.block_tokens
        loaded = sequence.reuse.loaded_tokens
        loaded.clear()
        for block in blocks:
            tokens = min(size, sequence.num_tokens - block * size)
            loaded[sequence.found.source(block).tier] += tokens

    def _chunk(self, sequence: Sequence, budget: int, load: range = range(0)) -> Chunk:
        """At most `budget` tokens. What the store lacks is offered to it bit by bit, so that a
        step's copies stay within proportion to its compute; all at once where a hand-off needs
        it."""
        size, start = self.limits.block_tokens, sequence.num_computed
        count = min(sequence.num_tokens - start, budget)
        most = whole = (start + count) // size
        if not isinstance(sequence.handoff, SendHandoff):
            most = sequence.stored_blocks + max(self.limits.max_batch_tokens, count) // size + 1
        store = range(sequence.stored_blocks, max(sequence.stored_blocks, min(whole, most)))
        return Chunk(sequence, start, count, load, store)
