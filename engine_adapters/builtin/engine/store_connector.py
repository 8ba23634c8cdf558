"""Between the engine and the store: lookups, loads, stores and hbm events, none of which can hold
the engine up for longer than the settings say."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from moontide.kvstore import StoreHandle

from ..model import KVTensors
from .background_loads import BackgroundLoads
from .breaker import Breaker
from .layer_load import LayerLoad, LoadLimits
from .layer_store import LayerStore, TailStore
from .load_advisor import LoadAdvisor, MeasuredChoice
from .load_decision import LoadChooser, TakeAll
from .lookups import Answer, Lookups
from .page_pool import PagePool
from .plan import Chunk
from .sequence import SendHandoff, Sequence
from .stats import StoreCounters
from .store_jobs import JobDesk, StagingBudget
from .store_link import StoreLink


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How long the engine waits for the store, and how much memory transfers may use: half of it is
    for background loads, an equal share each."""

    lookup_timeout_s: float = 0.25
    load: Literal["auto", "always"] = "auto"  # what is found: as far as it pays, or all
    load_timeout_s: float = 2.0  # in which nothing of a load comes
    store_timeout_s: float = 30.0  # from the start of a step to its commit
    handoff_timeout_s: float = 60.0  # from pages reserved to token 1
    pin_s: float = 8.0  # what a killed worker held is free within 10 s
    staging_bytes: int = 256 << 20
    max_background_loads: int = 16
    breaker_threshold: int = 3
    breaker_cooldown_s: float = 1.0


class StoreConnector:
    """Engine thread only."""

    def __init__(
        self, link: StoreLink, tensors: KVTensors, settings: StoreSettings, advisor: LoadAdvisor
    ) -> None:
        self.settings = settings
        self.advisor = advisor
        self._tensors = tensors
        breaker = Breaker(settings.breaker_threshold, settings.breaker_cooldown_s)
        background_bytes = settings.staging_bytes // 2
        step_staging = StagingBudget(settings.staging_bytes - background_bytes)
        self._desk = JobDesk(link, breaker, step_staging)
        self._lookups = Lookups(self._desk, pin_s=settings.pin_s)
        self._background = BackgroundLoads(self._desk, tensors, StagingBudget(background_bytes))
        self._num_lookups = self._num_loads = self._loads_failed = self._loaded_bytes = 0
        self._num_stores = self._stores_given_up = self._stored_bytes = 0

    @property
    def chooser(self) -> LoadChooser:
        return MeasuredChoice(self.advisor) if self.settings.load == "auto" else TakeAll()

    def filenos(self) -> list[int]:
        """What to wait on for news; nothing while none is due or the store is left alone."""
        is_left_alone = self._desk.breaker.is_open and not self._background
        if is_left_alone or not self._desk.num_outstanding:
            return []
        fileno = self._desk.fileno()
        return [] if fileno is None else [fileno]

    def seconds_to_deadline(self) -> float:
        """How long nothing needs to be done unless news come."""
        if self._background.is_ready:
            return 0.0
        seconds = (self._lookups.seconds_to_deadline(), self._background.seconds_to_deadline())
        return max(0.0, min(seconds))

    def daemon(self) -> str:
        """Instance of the daemon seen last; empty before the first."""
        return self._desk.link.daemon()

    def drain(self, seconds: float) -> None:
        """Waits for results that are still due, so that what they bring is given back. For the end,
        when every sequence is forgotten."""
        deadline = time.monotonic() + seconds
        self._desk.wait_until(lambda: not self._desk.num_outstanding, deadline, lambda: True)

    # -- sequences ----------------------------------------------------------------------

    def lookup(self, sequence: Sequence) -> None:
        self._num_lookups += 1
        self._lookups.ask(sequence, self.settings.lookup_timeout_s)

    def fetch(self, sequence: Sequence, blocks: range) -> None:
        """Has a hand-off's blocks brought to this node. The answer comes like a lookup's."""
        self._num_lookups += 1
        timeout_s = self.settings.handoff_timeout_s + self.settings.load_timeout_s
        self._lookups.fetch(sequence, blocks, timeout_s)

    def poll(self) -> list[Answer]:
        """Lookups answered since the last call."""
        self.collect()
        return self._lookups.answers()

    def collect(self) -> None:
        """Takes in finished jobs, so that their staging is free again, and renews what is pinned: a
        step can take longer than a pin lasts."""
        self._desk.poll()
        self._lookups.renew_due()

    def forget(self, sequence: Sequence) -> None:
        """Nothing is done for it any more: it has ended or holds no pages."""
        self._background.drop(sequence)
        self._lookups.forget(sequence)

    # -- between steps ------------------------------------------------------------------

    def begin_background_load(self, sequence: Sequence, blocks: range) -> bool:
        """Starts to fill the sequence's pages of `blocks`, which were found. False: they are not
        there any more. A hand-off's may be still to be computed: until `hurry` it is the hand-off's
        own deadline that ends the wait."""
        ticket = self._lookups.ticket(sequence)
        if ticket is None:
            return False
        is_open = sequence.is_received and sequence.first_token is None
        settings = self.settings
        self._background.begin(
            sequence,
            blocks,
            ticket,
            window_bytes=settings.staging_bytes // 2 // settings.max_background_loads,
            idle_s=settings.handoff_timeout_s if is_open else settings.load_timeout_s,
            within_s=math.inf if is_open else self._handoff_within_s(sequence),
        )
        if not sequence.is_received:
            self._narrow(sequence, blocks)
        return True

    def hurry(self, sequence: Sequence) -> None:
        """Its prompt is computed by now: what still comes must come soon."""
        idle_s = self.settings.load_timeout_s
        self._lookups.hurry(sequence, idle_s)
        self._background.hurry(sequence, idle_s, self._handoff_within_s(sequence))

    def fill(self) -> list[LayerLoad]:
        """Writes a bounded part of what has come into pages. Returns background loads that are
        over."""
        over = self._background.fill()
        self._count_loads(over)
        return over

    # -- in a step ----------------------------------------------------------------------

    def begin_loads(self, chunks: Seq[Chunk]) -> dict[Chunk, LayerLoad]:
        """Asks for the first layers at once; tickets of chunks that load nothing are released."""
        loading = [chunk for chunk in chunks if chunk.load]
        loads = {}
        for chunk in chunks:
            ticket = self._lookups.ticket(chunk.sequence)
            if ticket is None:
                assert not chunk.load, "a load without a lookup"
            elif not chunk.load:
                self._lookups.forget(chunk.sequence)  # the device has it all
            else:
                window_bytes = self.settings.staging_bytes // (4 * len(loading))
                limits = LoadLimits(
                    window_bytes=window_bytes,
                    part_bytes=window_bytes,
                    idle_s=self.settings.load_timeout_s,
                )
                loads[chunk] = LayerLoad(
                    self._desk,
                    self._tensors,
                    self._desk.staging,
                    limits,
                    sequence=chunk.sequence,
                    blocks=chunk.load,
                    ticket=ticket,
                )
                self._narrow(chunk.sequence, chunk.load)
        return loads

    def begin_stores(self, chunks: Seq[Chunk]) -> dict[Chunk, LayerStore]:
        """Of blocks that are full after the step; none while the store is left alone."""
        if self._desk.breaker.is_open:
            return {}
        return {chunk: self._store(chunk) for chunk in chunks if chunk.store}

    def begin_tails(self, chunks: Seq[Chunk]) -> dict[Chunk, LayerStore]:
        """Of what hand-offs leave over beyond their prompt's last full block."""
        if self._desk.breaker.is_open:
            return {}
        tails = {}
        for chunk in chunks:
            sequence, tail = chunk.sequence, chunk.stop % self._tensors.page_tokens
            is_last = chunk.stop == sequence.num_tokens
            if isinstance(sequence.handoff, SendHandoff) and is_last and tail:
                tails[chunk] = self._store_tail(sequence, sequence.handoff, tail)
        return tails

    def end_step(self, loads: Iterable[LayerLoad], stores: Iterable[LayerStore]) -> None:
        """Counts what came of it; the loads' tickets are not needed any more."""
        self._count_loads(loads)
        for store in stores:
            self._num_stores += 1
            self._stores_given_up += store.given_up
            self._stored_bytes += store.stored_bytes

    def publish(self, pool: PagePool) -> None:
        """Tells the store what the device cache gained and lost since it was last told; the client
        repeats it all to a new daemon."""
        if not self._desk.link.daemon():
            return
        changes = pool.drain_changes()
        if changes.stored or changes.removed:
            self._desk.attempt(lambda: self._desk.kv.publish_hbm(changes.stored, changes.removed))

    def counters(self) -> StoreCounters:
        return StoreCounters(
            lookups=self._num_lookups,
            lookups_unanswered=self._lookups.unanswered,
            loads=self._num_loads,
            loads_failed=self._loads_failed,
            loaded_bytes=self._loaded_bytes,
            **asdict(self.advisor.counts),
            stores=self._num_stores,
            stores_given_up=self._stores_given_up,
            stored_bytes=self._stored_bytes,
            errors=self._desk.errors,
            breaker_opened=self._desk.breaker.opened,
            outstanding_jobs=self._desk.num_outstanding,
            pending_lookups=self._lookups.num_pending,
            tickets=self._lookups.num_tickets,
            staging_bytes=self._desk.staging.used_bytes + self._background.staging.used_bytes,
        )

    def _handoff_within_s(self, sequence: Sequence) -> float:
        """How long the rest of a hand-off is worth waiting for once its prompt is computed: no
        longer than computing it here, or than a load may stand still, as that is done inside the
        batch."""
        load = sequence.loading
        if not sequence.is_received or load is None or self.settings.load == "always":
            return math.inf
        lost = range(load.start * self._tensors.page_tokens, sequence.num_tokens)
        return max(self.advisor.prefill.seconds(lost), self.settings.load_timeout_s)

    def _narrow(self, sequence: Sequence, load: range) -> None:
        """What is found after `load` and does not lie in this node's memory need not come."""
        found = sequence.found
        assert found is not None
        rest = range(load.stop, found.stop)
        if not all(found.source(block).transport == "shm" for block in rest):
            self._lookups.narrow(sequence, load.stop * self._tensors.page_tokens)

    def _store(self, chunk: Chunk) -> LayerStore:
        tokens = chunk.sequence.token_ids[: chunk.store.stop * self._tensors.page_tokens]
        first = chunk.store.start

        def begin(deadline_s: float) -> StoreHandle:
            return self._desk.kv.begin_store(tokens, first_block=first, deadline_s=deadline_s)

        pages = chunk.sequence.pages[first : chunk.store.stop]
        return LayerStore(self._desk, self._tensors, pages, begin, deadline=self._store_deadline())

    def _store_tail(self, sequence: Sequence, handoff: SendHandoff, num_tokens: int) -> LayerStore:
        begin = partial(self._begin_tail, handoff)
        page = sequence.pages[sequence.num_tokens // self._tensors.page_tokens]
        return TailStore(
            self._desk, self._tensors, page, num_tokens, begin, deadline=self._store_deadline()
        )

    def _begin_tail(self, handoff: SendHandoff, deadline_s: float) -> StoreHandle:
        return self._desk.kv.begin_request_store(
            handoff.key, ttl_s=self.settings.handoff_timeout_s, deadline_s=deadline_s
        )

    def _store_deadline(self) -> float:
        return time.monotonic() + self.settings.store_timeout_s

    def _count_loads(self, loads: Iterable[LayerLoad]) -> None:
        for load in loads:
            self._num_loads += 1
            self._loads_failed += load.failed
            self._loaded_bytes += load.loaded_bytes
            self.advisor.counts.loads_dropped += load.was_dropped
            outcome = load.outcome
            if outcome is not None:
                self.advisor.ended(outcome)
            self._lookups.forget(load.sequence)
