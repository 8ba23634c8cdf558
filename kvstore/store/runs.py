"""Runs: stretches of segments from which string entries are cut: by clients in what was granted to
them, by the daemon in its own for what it is sent.

A run is a reservation without a key: one slot, an owner, a share of the pool, quarantine. Its rest
shrinks from the front as entries are committed from it:

    |entry|entry|skipped: free|entry|··········rest··········|      then      |··········rest···|
     base                            front                     end

Entries come in batches of one or of a thousand, so there are two ways through a commit that do the
same: entry by entry, and by columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES, align_up

from ..errors import InvalidRequest
from ..slots import CHECKSUM, LENGTH, OFFSET, PLACE, WORDS, SlotState, pack_head
from ..types import PutStatus, ReserveStatus
from .catalog import SOFT_PINNED, STRINGS, VOLATILE, Catalog
from .ends import DropReason
from .entries import Entries
from .owners import Owner
from .placement import Placement
from .pool import Arena, Pool
from .quarantine import Quarantine
from .refusals import Refusals
from .room import Room, Space
from .shares import Shares
from .types import Pieces, ReserveResult, RunOptions, RunResult

FEW_ENTRIES = 96
"""Up to so many are committed without numpy, of which each step has a price of its own."""
EXISTS_REASON = "an entry of that key was there before"
Span = tuple[int, int]
"""From, to."""
_Numbers = NDArray[np.int64]
_U64s = NDArray[np.uint64]


class _Run:
    __slots__ = ("base", "end", "front", "owner", "segment", "slot", "writer")

    def __init__(self, space: Space, num_bytes: int, owner: Owner, writer: Arena) -> None:
        self.slot = space.slot
        self.owner = owner
        self.writer = writer
        self.segment = space.segment
        self.base = space.offset
        self.front = 0  # from base, as the next two
        self.end = num_bytes


class Runs:
    """Runs by slot. Each counts for its client's share of reserved bytes with what is left of
    it."""

    def __init__(
        self,
        entries: Entries,
        placement: Placement,
        room: Room,
        shares: Shares,
        refusals: Refusals,
        quarantine: Quarantine,
    ) -> None:
        self._entries = entries
        self._catalog: Catalog = entries.catalog
        self._pool: Pool = entries.pool
        self._placement = placement
        self._room = room
        self._shares = shares
        self._refusals = refusals
        self._quarantine = quarantine
        self._runs: dict[int, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    # -- reserving ----------------------------------------------------------------------

    def reserve(self, owner: Owner, num_bytes: int, now: float) -> ReserveResult:
        """Whole pages in a segment granted to the owner's client; FULL when it gets none."""
        return self._reserve(owner, self._pool.arena_of(owner.client), num_bytes, now)

    def reserve_for_daemon(self, owner: Owner, num_bytes: int, now: float) -> ReserveResult:
        """As `reserve`, where the daemon itself writes what the owner sends."""
        return self._reserve(owner, self._pool.daemon, num_bytes, now)

    def _reserve(self, owner: Owner, writer: Arena, num_bytes: int, now: float) -> ReserveResult:
        most = self._pool.settings.segment_bytes
        if not 0 < num_bytes <= most:
            raise InvalidRequest(f"a run of {num_bytes} bytes; give 1..{most} (one segment)")
        num_bytes = align_up(num_bytes, PAGE_BYTES)
        if not self._shares.admits(owner.client, num_bytes):
            return self._refusals.beyond_share(owner.client, num_bytes)
        if writer is self._pool.daemon:
            space = self._room.take_daemon_run(num_bytes, now)
        else:
            space = self._room.take_granted(writer, num_bytes, now)
        self._entries.announce_evictions()
        if space is None:
            return self._refusals.no_room(num_bytes)
        words, position = self._catalog.words, space.slot * WORDS
        generation = words[position] >> 32
        words[position + PLACE] = space.segment << 32
        words[position + OFFSET] = space.offset
        words[position + LENGTH] = num_bytes
        words[position + CHECKSUM] = 0
        words[position] = pack_head(generation, 0, SlotState.RESERVED)
        self._catalog.namespaces[space.slot] = STRINGS
        self._runs[space.slot] = _Run(space, num_bytes, owner, writer)
        owner.runs.add(space.slot)
        self._entries.counters.reserved_bytes += num_bytes
        self._shares.take(owner.client, num_bytes)
        return ReserveResult(
            ReserveStatus.RESERVED, space.slot, generation, space.segment, space.offset, True
        )

    def buffer(self, owner: Owner, slot: int, generation: int) -> memoryview:
        """All of an owner's run. Raises InvalidRequest when it is over."""
        run = self._find(owner, slot, generation)
        if run is None:
            raise _no_such_run(slot, generation)
        memory = self._pool.segments[run.segment].memory.buffer
        return memory[run.base : run.base + run.end]

    # -- committing ---------------------------------------------------------------------

    def commit(
        self,
        owner: Owner,
        slot: int,
        generation: int,
        pieces: Pieces,
        options: RunOptions,
        now: float,
    ) -> RunResult:
        """Cuts the pieces off. Raises InvalidRequest, with nothing changed, unless the run is the
        owner's and the pieces lie in it as they must."""
        run = self._find(owner, slot, generation)
        if run is None:
            self._entries.counters.stale_notices += 1
            raise _no_such_run(slot, generation)
        self._entries.expire_among(pieces.entries, now)
        if len(pieces.entries) > 1 and len(set(pieces.entries)) < len(pieces.entries):
            return self._commit_repeated(run, pieces, options, now)
        if len(pieces.entries) <= FEW_ENTRIES:
            return self._commit_few(run, pieces, options, now)
        return self._commit_columns(run, pieces, options, now)

    def _commit_repeated(
        self, run: _Run, pieces: Pieces, options: RunOptions, now: float
    ) -> RunResult:
        """An entry that is named again meets itself: they go one after the other."""
        _stops_of_few(run, _numbers(pieces.offsets), _numbers(pieces.sizes))
        results = [self._commit_few(run, each, options, now) for each in _one_by_one(pieces)]
        return RunResult(
            b"".join([result.statuses for result in results]),
            b"".join([result.slots for result in results]),
            b"".join([result.generations for result in results]),
            next((result.reason for result in results if result.reason), ""),
            [entry for result in results for entry in result.stored],
        )

    def _fresh(self, entries: Sequence[bytes], options: RunOptions) -> list[bool] | None:
        """Which to store; None: all."""
        committed, elsewhere = self._catalog.visible, options.elsewhere
        if options.if_exists == "replace" or (
            committed.keys().isdisjoint(entries)
            and (not elsewhere or elsewhere.isdisjoint(entries))
        ):
            return None
        return [entry not in committed and entry not in elsewhere for entry in entries]

    def _drop_replaced(self, entries: Sequence[bytes], options: RunOptions) -> None:
        """Older values, and what a clear has hidden."""
        if options.if_exists != "replace" and not self._catalog.retired:
            return
        committed = self._catalog.committed
        existing = [committed[entry] for entry in entries if entry in committed]
        if existing:
            self._entries.drop(existing, DropReason.REPLACED)

    def _end_at(self, slots: Iterable[int], deadline: float) -> None:
        for slot in slots:
            self._entries.expiry.set(slot, deadline)

    def _cut(self, run: _Run, last: int, skipped: Iterable[Span]) -> None:
        """The run begins at `last`; what was `skipped` before it is free."""
        for begin, stop in skipped:
            self._pool.release_extent(run.segment, run.base + begin, stop - begin)
        self._entries.counters.reserved_bytes -= last - run.front
        self._shares.give_back(run.owner.client, last - run.front, 0)
        run.front = last
        words, position = self._catalog.words, run.slot * WORDS
        words[position + OFFSET] = run.base + last
        words[position + LENGTH] = run.end - last
        if last == run.end:
            self._close(run)
            self._catalog.give_back_slot(run.slot)

    # -- committing a few -----------------------------------------------------------------

    def _commit_few(self, run: _Run, pieces: Pieces, options: RunOptions, now: float) -> RunResult:
        """All entries differ."""
        offsets, sizes, checksums = map(_numbers, pieces[1:])
        stops = _stops_of_few(run, offsets, sizes)
        self._catalog.doom_fills(pieces.entries)
        entries, count, reason = pieces.entries, len(stops), ""
        chosen: Sequence[int] = range(count)
        statuses = bytearray([PutStatus.STORED]) * count
        fresh = self._fresh(entries, options)
        if fresh is not None:
            reason = EXISTS_REASON
            statuses = bytearray([PutStatus.STORED if each else PutStatus.EXISTS for each in fresh])
            chosen, entries = list(compress(chosen, fresh)), list(compress(entries, fresh))
        slots = self._take_few_slots(len(chosen))
        if len(slots) < len(chosen):
            reason = self._refusals.no_slots(len(chosen) - len(slots))
            for index in chosen[len(slots) :]:
                statuses[index] = PutStatus.FULL
            chosen, entries = chosen[: len(slots)], entries[: len(slots)]
        self._drop_replaced(entries, options)
        base = run.base
        places = [(base + offsets[index], sizes[index], checksums[index]) for index in chosen]
        generations = self._entries.publish_few(
            slots, entries, run.segment, places, flags=_flags(options), now=now
        )
        if options.ttl_s is not None:
            self._end_at(slots, now + options.ttl_s)
        if stops:
            self._cut(run, stops[-1], _skipped_of_few(run.front, offsets, chosen, stops))
        return RunResult(
            bytes(statuses),
            _spread_few(slots, chosen, count),
            _spread_few(generations, chosen, count),
            reason,
            entries,
        )

    def _take_few_slots(self, count: int) -> list[int]:
        """Evicts for those that are missing."""
        slots = self._catalog.take_few_slots(count)
        missing = count - len(slots)
        if missing and self._placement.free_slots(missing):
            slots += self._catalog.take_few_slots(missing)
        return slots

    # -- committing by columns ------------------------------------------------------------

    def _commit_columns(
        self, run: _Run, pieces: Pieces, options: RunOptions, now: float
    ) -> RunResult:
        """All entries differ."""
        offsets, sizes = (np.frombuffer(each, np.int64) for each in pieces[1:3])
        checksums = np.frombuffer(pieces.checksums, np.uint64)
        stops = _stops(run, offsets, sizes)
        self._catalog.doom_fills(pieces.entries)
        entries, count, reason = pieces.entries, len(stops), ""
        chosen = np.arange(count)
        statuses = np.full(count, PutStatus.EXISTS, np.uint8)
        fresh = self._fresh(entries, options)
        if fresh is not None:
            reason = EXISTS_REASON
            chosen, entries = np.flatnonzero(fresh), list(compress(entries, fresh))
        slots = self._take_slots(len(chosen))
        if len(slots) < len(chosen):
            reason = self._refusals.no_slots(len(chosen) - len(slots))
            statuses[chosen[len(slots) :]] = PutStatus.FULL
            chosen, entries = chosen[: len(slots)], entries[: len(slots)]
        statuses[chosen] = PutStatus.STORED
        self._drop_replaced(entries, options)
        begins = offsets[chosen]
        places = begins + run.base, sizes[chosen], checksums[chosen]
        generations = self._entries.publish_columns(
            slots, entries, run.segment, places, flags=_flags(options), now=now
        )
        if options.ttl_s is not None:
            self._end_at(slots.tolist(), now + options.ttl_s)
        self._cut(run, int(stops[-1]), _skipped(run.front, begins, stops[chosen], stops[-1]))
        return RunResult(
            statuses.tobytes(),
            _spread(slots, chosen, count),
            _spread(generations, chosen, count),
            reason,
            entries,
        )

    def _take_slots(self, count: int) -> _Numbers:
        """Evicts for those that are missing."""
        slots = self._catalog.take_slots(count)
        missing = count - len(slots)
        if missing and self._placement.free_slots(missing):
            slots = np.concatenate((slots, self._catalog.take_slots(missing)))
        return slots

    # -- ending -------------------------------------------------------------------------

    def abort(self, owner: Owner, slot: int, generation: int) -> bool:
        """Frees what is left of an owner's run. False: it is none."""
        run = self._find(owner, slot, generation)
        if run is None:
            return False
        self._discard(run)
        return True

    def end_owner(self, owner: Owner, *, stopped: bool) -> None:
        """As of other reservations: unless the writer has `stopped`, what it can still write goes
        to quarantine."""
        for slot in tuple(owner.runs):
            run = self._runs[slot]
            if stopped or run.writer is self._pool.daemon:
                self._discard(run)
            else:
                self._close(run)
                self._quarantine.take_in(slot, owner.client)

    def end_in_segment(self, owner: Owner, segment: int) -> None:
        """The owner's process can no longer write the segment."""
        for slot in tuple(owner.runs):
            if self._runs[slot].segment == segment:
                self._discard(self._runs[slot])

    def _find(self, owner: Owner, slot: int, generation: int) -> _Run | None:
        run = self._runs.get(slot)
        if run is None or run.owner is not owner or self._catalog.generation(slot) != generation:
            return None
        return run

    def _discard(self, run: _Run) -> None:
        self._close(run)
        self._entries.free(run.slot)

    def _close(self, run: _Run) -> None:
        """The run is over; what becomes of its slot is the caller's next step."""
        del self._runs[run.slot]
        run.owner.runs.discard(run.slot)
        left = run.end - run.front
        self._entries.counters.reserved_bytes -= left
        self._shares.give_back(run.owner.client, left)

    # -- checking -----------------------------------------------------------------------

    def check_integrity(self) -> list[str]:
        """Differences between the runs and their slots."""
        words, differences = self._catalog.words, []
        for slot, run in self._runs.items():
            position = slot * WORDS
            shown = tuple(words[position + word] for word in (PLACE, OFFSET, LENGTH))
            expected = (run.segment << 32, run.base + run.front, run.end - run.front)
            if shown != expected or words[position] & 0xFF != SlotState.RESERVED:
                differences.append(f"run in slot {slot}: its words say {shown}, not {expected}")
            if slot not in run.owner.runs:
                differences.append(f"run in slot {slot} is not among its owner's")
        return differences


def _no_such_run(slot: int, generation: int) -> InvalidRequest:
    return InvalidRequest(f"slot {slot}, generation {generation}: no such run")


def _flags(options: RunOptions) -> int:
    return (SOFT_PINNED if options.soft_pin else 0) | (0 if options.ttl_s is None else VOLATILE)


def _numbers(packed: bytes) -> list[int]:
    return memoryview(packed).cast("Q").tolist()


def _one_by_one(pieces: Pieces) -> Iterator[Pieces]:
    entries, *columns = pieces
    for index, entry in enumerate(entries):
        yield Pieces([entry], *(column[8 * index : 8 * index + 8] for column in columns))


def _spread(values: NDArray[np.integer], positions: _Numbers, count: int) -> bytes:
    """u32 each, 0 where no position is."""
    if len(values) == count:
        return values.astype(np.uint32).tobytes()
    spread = np.zeros(count, np.uint32)
    spread[positions] = values
    return spread.tobytes()


def _spread_few(values: Sequence[int], positions: Sequence[int], count: int) -> bytes:
    """As `_spread`."""
    if len(values) == count:
        return array("I", values).tobytes()
    spread = array("I", bytes(4 * count))
    for position, value in zip(positions, values, strict=True):
        spread[position] = value
    return spread.tobytes()


def _stops_of_few(run: _Run, offsets: Sequence[int], sizes: Sequence[int]) -> Sequence[int]:
    """Where each piece stops. Raises InvalidRequest unless they lie in order in what is left of
    the run."""
    stops, reached = [], run.front
    for offset, size in zip(offsets, sizes, strict=True):
        alignment = PAGE_BYTES if size >= PAGE_BYTES else CACHE_LINE_BYTES
        stop = offset + (-(-size // alignment) or 1) * alignment
        if offset < reached or offset % alignment or stop > run.end:
            raise InvalidRequest(
                f"an entry of {size} bytes at offset {offset} of a run that is free in "
                f"{reached}..{run.end}; it must lie there whole, at a multiple of {PAGE_BYTES} "
                f"(of {CACHE_LINE_BYTES} below {PAGE_BYTES} bytes)"
            )
        stops.append(stop)
        reached = stop
    return stops


def _skipped_of_few(
    front: int, offsets: Sequence[int], chosen: Sequence[int], stops: Sequence[int]
) -> list[Span]:
    """What lies between `front` and the last stop besides the chosen pieces."""
    skipped = []
    for index in chosen:
        if offsets[index] > front:
            skipped.append((front, offsets[index]))
        front = stops[index]
    if stops[-1] > front:
        skipped.append((front, stops[-1]))
    return skipped


def _stops(run: _Run, offsets: _Numbers, sizes: _Numbers) -> _Numbers:
    """As `_stops_of_few`, which tells what is wrong."""
    if sizes.min() >= 0 and max(int(offsets.max()), int(sizes.max())) <= run.end:
        lengths = np.maximum(sizes, 1)
        masks = np.where(lengths >= PAGE_BYTES, PAGE_BYTES - 1, CACHE_LINE_BYTES - 1)
        stops: _Numbers = offsets + lengths + masks & ~masks
        if (
            offsets[0] >= run.front
            and stops[-1] <= run.end
            and not (offsets & masks).any()
            and not (offsets[1:] < stops[:-1]).any()
        ):
            return stops
    numbers = offsets.view(np.uint64).tolist(), sizes.view(np.uint64).tolist()
    return np.array(_stops_of_few(run, *numbers), np.int64)


def _skipped(front: int, begins: _Numbers, stops: _Numbers, last: int) -> list[Span]:
    """What lies between `front` and `last` besides these pieces."""
    if int((stops - begins).sum()) == last - front:
        return []
    before, after = np.concatenate(([front], stops)), np.append(begins, last)
    gaps = np.flatnonzero(after > before)
    return list(zip(before[gaps].tolist(), after[gaps].tolist(), strict=True))
