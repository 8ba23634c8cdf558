"""DRAM → NVMe: every committed entry is copied to disk in the background.

    commit ──► backlog ──► held, being written ──► flushed
                  └─(full: left out, found again by a sweep)

A put never waits for the disk: what the backlog or the disk's queue cannot take stays in DRAM
unflushed, and a sweep over the store offers it again, coldest first. Above the high watermark the
coldest come before what was just written, so that eviction finds entries that lie on disk already.
After a failed write the disk gets one entry at a time until it takes one again.

With late writes nothing goes to disk as it is stored: once DRAM is half full its coldest seventh
does, by the eviction policy's own order, and all that is left when the process ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Literal

from ...nvme import NvmeTier, NvmeWrite
from ...store import Demotable, Store
from .tenant_caps import TenantCaps

logger = logging.getLogger(__name__)

MAX_BACKLOG = 65536
MAX_WRITING_BYTES = 128 << 20
"""Several groups of the disk's writer: some are gathered while one is written."""
MAX_WRITING_RATIO = 3 / 8
"""Of the DRAM tier: what is being copied keeps its space when it is evicted meanwhile."""
MAX_WRITING_ENTRIES = 4096
"""Leaves room in the disk's queue for removals."""
MAX_STARTED_AT_ONCE = 256
"""Writes begun before others get the loop."""
SWEEP_ENTRIES = 8192
"""More than are being written: a sweep finds those, too."""
SWEEP_SECONDS = 0.5
HIGH_WATERMARK = 0.85
LATE_WATERMARK = 0.5
"""Low, since segments that are not full count as room that no one else may use."""
LATE_RATIO = 0.15
"""Of DRAM: late writes keep so much ahead of eviction. More would lie in both tiers for nothing; a
request that brings more at once pushes out what the disk has not got."""
LOOKS = 4
"""So often is looked for what went cold while as many entries come as are kept ahead."""
LOOK_SECONDS = 2.0
"""And when nothing comes: what is hit or filled moves others, too."""
BUSY_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""Pause after a failed write: a full or broken disk is not asked all the time."""


class Demoter:
    """Lives in the loop. `wake` asks it to call `pump` soon, outside of whatever runs now. Nothing
    of a `closed` namespace is written."""

    def __init__(
        self,
        store: Store,
        nvme: NvmeTier,
        *,
        caps: TenantCaps,
        closed: Container[str],
        writes: Literal["through", "late"],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._nvme = nvme
        self._caps = caps
        self._closed = closed
        self._writes = writes
        self._is_late = writes == "late"
        self._unseen = 0  # entries that may still come before the coldest are looked for
        self._next_look = 0.0
        self._clock = clock
        self._wake = wake
        self._backlog: deque[Demotable] = deque()
        self._writing: dict[bytes, int] = {}  # entry → bytes
        self._writing_bytes = 0
        self._left_out = False  # something unflushed may be in no backlog
        self._paused_until = 0.0
        self._suspect = False  # the last write failed
        self._sweep_seconds = SWEEP_SECONDS
        self._next_sweep = 0.0
        self._max_bytes = min(
            MAX_WRITING_BYTES, int(MAX_WRITING_RATIO * store.settings.capacity_bytes)
        )
        store.on_committed(self._offer)

    def is_writing(self, entry: bytes) -> bool:
        return entry in self._writing

    @property
    def is_idle(self) -> bool:
        """Everything that can be on disk is there."""
        return not (self._backlog or self._writing or self._left_out)

    def tick(self, now: float) -> None:
        """Every 100 ms."""
        if self._is_late:
            self._unseen = 0 if now >= self._next_look else self._unseen
        elif (self._is_above(HIGH_WATERMARK) if self._backlog else self._left_out) and (
            now >= self._next_sweep
        ):
            self._sweep(now)
        self.pump()

    def writes_again(self, entry: bytes) -> bool:
        """Whether it is here and goes to disk once it is cold, if it does not lie there then. Any
        thread."""
        return self._is_late and self._store.holds(entry)

    def look_again(self) -> None:
        """Something has left the disk that may be among the coldest here."""
        if self._is_late:
            self._unseen = 0
            self._wake()

    def offer_again(self) -> None:
        """What the disk gave up, or let go, may go there now."""
        self._store.reoffer_retired()
        self._left_out = True

    def resume(self) -> None:
        """After `sweep_all`, the process goes on."""
        self._is_late = self._writes == "late"
        self._sweep_seconds = SWEEP_SECONDS

    def sweep_all(self) -> None:
        """The process is about to end: whatever is not on disk goes there now."""
        self._is_late = False
        self._store.reoffer_retired()
        self._paused_until = self._sweep_seconds = 0.0
        self._sweep(self._clock())
        self.pump()

    def pump(self) -> None:
        """Begins writes until the disk has enough to do."""
        now = self._clock()
        if now < self._paused_until:
            return
        if self._is_late and self._unseen <= 0:
            self._look(now)
        for _ in range(MAX_STARTED_AT_ONCE):
            if not self._backlog or self._is_busy():
                return
            if not self._begin(self._backlog.popleft()):
                return
        self._wake()

    def _offer(self, entries: list[Demotable]) -> None:
        if self._is_late:
            self._unseen -= len(entries)
            if self._unseen <= 0:
                self._wake()
            return
        room = MAX_BACKLOG - len(self._backlog)
        self._backlog.extend(entries[:room])
        if len(entries) > room:
            self._left_out = True
        self._wake()

    def _is_busy(self) -> bool:
        if self._suspect and self._writing:
            return True
        return self._writing_bytes >= self._max_bytes or len(self._writing) >= MAX_WRITING_ENTRIES

    def _is_above(self, watermark: float) -> bool:
        store = self._store
        return store.used_bytes > watermark * store.settings.capacity_bytes

    def _look(self, now: float) -> None:
        """The backlog becomes what is cold and not on disk, once DRAM fills up."""
        self._unseen = max(int(LATE_RATIO / LOOKS * self._store.num_entries), 1)
        self._next_look = now + LOOK_SECONDS
        if self._is_above(LATE_WATERMARK):
            self._backlog.clear()
            self._backlog.extend(self._store.unflushed_of_coldest(LATE_RATIO, SWEEP_ENTRIES))

    def _sweep(self, now: float) -> None:
        """The backlog becomes the coldest unflushed entries. What it held and they do not is found
        by the next sweep."""
        self._next_sweep = now + self._sweep_seconds
        self._backlog.clear()
        self._backlog.extend(self._store.unflushed(SWEEP_ENTRIES))
        self._left_out = len(self._backlog) == SWEEP_ENTRIES

    def _begin(self, entry: Demotable) -> bool:
        """False: the disk takes no more now."""
        held = self._store.hold(entry.slot, entry.generation)
        if held is None:
            return True
        write = NvmeWrite(
            held.entry,
            held.namespace,
            entry.parent,
            held.extents,
            held.checksums,
            held.element_bytes,
        )
        num_bytes = sum(map(len, held.extents))
        if held.entry in self._writing or held.namespace in self._closed:
            # an older value of it, or what lies below a floor, goes first
            self._store.release(entry.slot)
            self._left_out = True
            return True
        if not self._nvme.can_ever_fit(write):
            self._store.release(entry.slot)
            self._store.give_up(entry.slot, entry.generation)
            return True
        if not self._caps.admits(held.namespace, num_bytes):
            self._store.release(entry.slot)
            self._store.give_up(entry.slot, entry.generation)
            return True
        if not self._nvme.may_write(num_bytes):
            self._store.release(entry.slot)
            self._put_back(entry)
            return False
        self._writing[held.entry] = num_bytes
        self._writing_bytes += num_bytes
        if not self._nvme.write(write, partial(self._written, entry, held.entry)):
            self._end(entry, held.entry)
            self._put_back(entry)
            return False
        return True

    def _put_back(self, entry: Demotable) -> None:
        """The disk's queue is full, or the write budget used up."""
        self._backlog.appendleft(entry)
        self._paused_until = self._clock() + BUSY_SECONDS

    def _written(self, entry: Demotable, name: bytes, stored: bool) -> None:
        self._end(entry, name)
        if stored:
            self._store.mark_flushed(entry.slot, entry.generation)
        else:
            self._left_out = True
            now = self._clock()
            if now >= self._paused_until:
                logger.warning("demotion failed entry=%s", name[:40].hex())
            self._paused_until = now + RETRY_SECONDS
        self._suspect = not stored
        self._wake()

    def _end(self, entry: Demotable, name: bytes) -> None:
        self._writing_bytes -= self._writing.pop(name)
        self._store.release(entry.slot)
