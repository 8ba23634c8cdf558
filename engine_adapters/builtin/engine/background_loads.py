"""Fills the pages of sequences that are not in the batch yet, between steps."""

from __future__ import annotations

import math
import time

from moontide.kvstore import Ticket

from ..model import KVTensors
from .layer_load import LayerLoad, LoadLimits
from .sequence import Sequence
from .store_jobs import JobDesk, StagingBudget

FILL_BYTES = 8 << 20
"""Written into pages in one turn, so that the step after it is delayed by a few milliseconds only;
the part that reaches it is still written whole."""
PART_BYTES = 2 << 20


class BackgroundLoads:
    """Engine thread only. Oldest first."""

    def __init__(self, desk: JobDesk, tensors: KVTensors, staging: StagingBudget) -> None:
        self.staging = staging
        self._desk = desk
        self._tensors = tensors
        self._loads: dict[Sequence, LayerLoad] = {}

    def __len__(self) -> int:
        return len(self._loads)

    @property
    def is_ready(self) -> bool:
        """Whether `fill` has something to do at once."""
        return any(load.is_ready or load.is_over for load in self._loads.values())

    def begin(
        self,
        sequence: Sequence,
        blocks: range,
        ticket: Ticket,
        *,
        window_bytes: int,
        idle_s: float,
        within_s: float = math.inf,
    ) -> None:
        """See `LoadLimits`."""
        limits = LoadLimits(
            window_bytes=window_bytes, part_bytes=PART_BYTES, idle_s=idle_s, within_s=within_s
        )
        self._loads[sequence] = LayerLoad(
            self._desk,
            self._tensors,
            self.staging,
            limits,
            sequence=sequence,
            blocks=blocks,
            ticket=ticket,
        )

    def fill(self) -> list[LayerLoad]:
        """Writes what has come into the pages, at most FILL_BYTES. Returns the loads that are over
        and forgets them."""
        now = time.monotonic()
        room = FILL_BYTES
        over = []
        for sequence, load in list(self._loads.items()):
            while room > 0 and load.is_ready:
                room -= load.fill()
            if not load.is_ready and load.late_at <= now:
                load.time_out()
            if load.is_over:
                over.append(load)
                self.drop(sequence)
        return over

    def hurry(self, sequence: Sequence, idle_s: float, within_s: float) -> None:
        """From now on those are the limits of its load, if it has one."""
        load = self._loads.get(sequence)
        if load is not None:
            load.hurry(idle_s, within_s)

    def drop(self, sequence: Sequence) -> None:
        """Its pages are not written any more."""
        load = self._loads.pop(sequence, None)
        if load is not None:
            load.close()

    def seconds_to_deadline(self) -> float:
        return min((load.late_at for load in self._loads.values()), default=float("inf")) - (
            time.monotonic()
        )
