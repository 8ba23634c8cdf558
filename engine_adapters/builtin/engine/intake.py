"""From arrival to a place in the batch: lookups, hand-offs, loads beside the batch."""

from __future__ import annotations

import time

from .handoff_clock import HandoffClock
from .plan import StepPlan
from .scheduler import Scheduler
from .sequence import Phase, Sequence
from .stats import Totals
from .store_connector import StoreConnector


class Intake:
    """Engine thread only. Nothing here waits: what the store says is taken in turn by turn."""

    def __init__(self, scheduler: Scheduler, connector: StoreConnector, totals: Totals) -> None:
        self._scheduler = scheduler
        self._connector = connector
        self._totals = totals
        self._handoffs = HandoffClock(connector.settings.handoff_timeout_s)

    def add(self, sequence: Sequence) -> None:
        self._scheduler.add(sequence)
        if sequence.phase is Phase.LOOKUP:
            self._connector.lookup(sequence)

    def collect(self) -> list[Sequence]:
        """Takes in what the store has said, and a bounded part of what it has brought. Returns
        hand-offs whose time is up."""
        for sequence, found in self._connector.poll():
            if sequence.phase is Phase.LOADING:
                sequence.found = found
                self._fill_pages(sequence)
            else:
                self._scheduler.lookup_done(sequence, found)
        for load in self._connector.fill():
            self._loaded(load.sequence, load.valid_blocks)
        return self._handoffs.expired(time.monotonic())

    def follow(self, plan: StepPlan) -> list[Sequence]:
        """Does beside the step what the plan wants. Returns hand-offs whose pages are reserved
        now, for the first time."""
        for sequence in plan.preempted:
            self._connector.forget(sequence)
            if sequence.phase is Phase.LOOKUP:
                self._connector.lookup(sequence)
        now = time.monotonic()
        reserved = []
        for sequence in plan.loads:
            if not sequence.is_received:
                self._fill_pages(sequence)
                continue
            if self._handoffs.begin(sequence, now):
                reserved.append(sequence)
            self._receive(sequence)
        return reserved

    def give_first_token(self, sequence: Sequence, token_id: int) -> None:
        """Token 1 of a hand-off: its prompt is computed, what still comes must come soon."""
        self._handoffs.end(sequence)
        self._scheduler.give_first_token(sequence, token_id)
        self._connector.hurry(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Frees everything it holds, in whatever phase it is."""
        self._scheduler.finish(sequence)
        self._connector.forget(sequence)
        self._handoffs.end(sequence)

    def seconds_to_deadline(self) -> float:
        """How long there is nothing to do here unless news come."""
        return min(
            self._connector.seconds_to_deadline(),
            self._handoffs.seconds_to_deadline(time.monotonic()),
        )

    def _receive(self, sequence: Sequence) -> None:
        """The device may have all of it."""
        assert sequence.loading is not None
        if sequence.loading:
            self._connector.fetch(sequence, sequence.loading)
        else:
            self._loaded(sequence, 0)

    def _fill_pages(self, sequence: Sequence) -> None:
        load, found = sequence.loading, sequence.found
        assert load is not None
        blocks = range(load.start, min(load.stop, found.stop if found else 0))
        if not blocks or not self._connector.begin_background_load(sequence, blocks):
            self._loaded(sequence, 0)

    def _loaded(self, sequence: Sequence, valid_blocks: int) -> None:
        assert sequence.loading is not None
        self._totals.recomputed += valid_blocks < len(sequence.loading)
        self._scheduler.loaded(sequence, valid_blocks)
