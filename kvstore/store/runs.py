"""Runs: stretches of granted segments from which clients cut string entries themselves.

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
from ..slots import CHECKSUM, HEAD, LENGTH, OFFSET, PLACE, WORDS, SlotState, pack_head
from ..types import PutStatus, ReserveStatus
from .allocator import occupied_bytes_of
from .catalog import SOFT_PINNED, STRINGS, VOLATILE, Catalog
from .entries import DropReason, Entries
from .owners import Owner
from .placement import Placement
from .pool import Pool
from .quarantine import Quarantine
from .refusals import Refusals
from .room import Room
from .shares import Shares
from .slot_table import NO_SLOT
from .types import Pieces, ReserveResult, RunOptions, RunResult

FEW_ENTRIES = 96
"""Up to so many are committed without numpy, of which each step has a price of its own."""
EXISTS_REASON = "an entry of that key was there before"
Span = tuple[int, int]
"""From, to."""
_U64s = NDArray[np.uint64]


class _Run:
    __slots__ = ("base", "end", "front", "owner", "segment", "slot")

    def __init__(self, slot: int, owner: Owner, segment: int, base: int, num_bytes: int) -> None:
        self.slot = slot
        self.owner = owner
        self.segment = segment
        self.base = base
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
        most = self._pool.settings.segment_bytes
        if not 0 < num_bytes <= most:
            raise InvalidRequest(f"a run of {num_bytes} bytes; give 1..{most} (one segment)")
        num_bytes = align_up(num_bytes, PAGE_BYTES)
        if not self._shares.admits(owner.client, num_bytes):
            return self._refusals.beyond_share(owner.client, num_bytes)
        space = self._room.take_granted(self._pool.arena_of(owner.client), num_bytes, now)
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
        self._runs[space.slot] = _Run(space.slot, owner, space.segment, space.offset, num_bytes)
        owner.runs.add(space.slot)
        self._entries.counters.reserved_bytes += num_bytes
        self._shares.take(owner.client, num_bytes)
        return ReserveResult(
            ReserveStatus.RESERVED, space.slot, generation, space.segment, space.offset, True
        )

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
            raise InvalidRequest(f"slot {slot}, generation {generation}: no such run")
        self._entries.expire_among(pieces.entries, now)
        if len(pieces.entries) > 1 and len(set(pieces.entries)) < len(pieces.entries):
            return self._commit_repeated(run, pieces, options, now)
        return self._commit_different(run, pieces, options, now)

    def _commit_different(
        self, run: _Run, pieces: Pieces, options: RunOptions, now: float
    ) -> RunResult:
        if len(pieces.entries) <= FEW_ENTRIES:
            return self._commit_few(run, pieces, options, now)
        return self._commit_columns(run, pieces, options, now)

    def _commit_repeated(
        self, run: _Run, pieces: Pieces, options: RunOptions, now: float
    ) -> RunResult:
        """An entry that is named again meets itself: stretches without it follow one another."""
        _check_few(run, _numbers(pieces.offsets), _numbers(pieces.sizes))
        results = [
            self._commit_different(run, stretch, options, now) for stretch in _stretches(pieces)
        ]
        return RunResult(
            b"".join([result.statuses for result in results]),
            b"".join([result.slots for result in results]),
            b"".join([result.generations for result in results]),
            next((result.reason for result in results if result.reason), ""),
            [entry for result in results for entry in result.stored],
        )

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

    def _end_at(self, slots: Iterable[int], deadline: float) -> None:
        for slot in slots:
            self._entries.expiry.set(slot, deadline)

    # -- committing a few -----------------------------------------------------------------

    def _commit_few(self, run: _Run, pieces: Pieces, options: RunOptions, now: float) -> RunResult:
        """All entries differ."""
        offsets, sizes, checksums = map(_numbers, pieces[1:])
        stops = _check_few(run, offsets, sizes)
        self._catalog.doom_fills(pieces.entries)
        count, reason = len(stops), ""
        chosen, entries = self._wanted_few(pieces.entries, options)
        statuses = bytearray([PutStatus.EXISTS]) * count
        if len(chosen) < count:
            reason = EXISTS_REASON
        slots = self._take_few_slots(len(chosen))
        if len(slots) < len(chosen):
            reason = self._refusals.no_slots(len(chosen) - len(slots))
            for index in chosen[len(slots) :]:
                statuses[index] = PutStatus.FULL
            chosen, entries = chosen[: len(slots)], entries[: len(slots)]
        if options.if_exists == "replace":
            self._drop_replaced(entries)
        generations = []
        words, place = self._catalog.words, run.segment << 32 | 1
        base, stored = run.base, int(PutStatus.STORED)
        for slot, index in zip(slots, chosen, strict=True):
            position = slot * WORDS
            words[position + PLACE] = place
            words[position + OFFSET] = base + offsets[index]
            words[position + LENGTH] = sizes[index]
            words[position + CHECKSUM] = checksums[index]
            generations.append(words[position] >> 32)
            statuses[index] = stored
        if slots:
            if options.ttl_s is not None:
                self._end_at(slots, now + options.ttl_s)
            self._entries.publish_few(slots, entries, _flags(options), now)
        if stops:
            self._cut(run, stops[-1], _skipped_few(run.front, offsets, chosen, stops))
        return RunResult(
            bytes(statuses),
            _spread_few(slots, chosen, count),
            _spread_few(generations, chosen, count),
            reason,
            entries,
        )

    def _wanted_few(
        self, entries: Sequence[bytes], options: RunOptions
    ) -> tuple[Sequence[int], Sequence[bytes]]:
        """As `_wanted`."""
        committed, elsewhere = self._catalog.committed, options.elsewhere
        if options.if_exists != "replace":
            fresh = [entry not in committed and entry not in elsewhere for entry in entries]
            if not all(fresh):
                return [*compress(range(len(entries)), fresh)], [*compress(entries, fresh)]
        return range(len(entries)), entries

    def _take_few_slots(self, count: int) -> list[int]:
        """Evicts for those that are missing."""
        slots = self._catalog.take_few_slots(count)
        for _ in range(count - len(slots)):
            if not self._placement.free_slot():
                break
            slot = self._catalog.take_slot()
            if slot != NO_SLOT:  # what is being copied to disk keeps its own until then
                slots.append(slot)
        return slots

    def _drop_replaced(self, entries: Sequence[bytes]) -> None:
        committed = self._catalog.committed
        existing = [committed[entry] for entry in entries if entry in committed]
        if existing:
            self._entries.drop(existing, DropReason.REPLACED)

    # -- committing by columns ------------------------------------------------------------

    def _commit_columns(
        self, run: _Run, pieces: Pieces, options: RunOptions, now: float
    ) -> RunResult:
        """All entries differ."""
        offsets, sizes, checksums = map(_column, pieces[1:])
        stops = _check_columns(run, offsets, sizes)
        self._catalog.doom_fills(pieces.entries)
        chosen, entries = self._wanted(pieces.entries, options)
        reason = EXISTS_REASON if len(chosen) < len(stops) else ""
        statuses = np.full(len(stops), PutStatus.EXISTS, np.uint8)
        slots = self._take_slots(len(chosen))
        if len(slots) < len(chosen):
            reason = self._refusals.no_slots(len(chosen) - len(slots))
            statuses[chosen[len(slots) :]] = PutStatus.FULL
            chosen, entries = chosen[: len(slots)], entries[: len(slots)]
        if options.if_exists == "replace":
            self._drop_replaced(entries)
        places = offsets[chosen] + np.uint64(run.base), sizes[chosen], checksums[chosen]
        generations = self._fill_columns(run.segment, places, slots)
        if options.ttl_s is not None:
            self._end_at(slots.tolist(), now + options.ttl_s)
        self._entries.publish_strings(slots, entries, _flags(options), now)
        statuses[chosen] = PutStatus.STORED
        self._cut(run, int(stops[-1]), _skipped(run.front, offsets[chosen], stops[chosen], stops))
        return RunResult(
            statuses.tobytes(),
            _spread(slots, chosen, len(stops)),
            _spread(generations, chosen, len(stops)),
            reason,
            entries,
        )

    def _wanted(
        self, entries: Sequence[bytes], options: RunOptions
    ) -> tuple[NDArray[np.int64], list[bytes]]:
        """Positions and ids of the entries to store."""
        committed, elsewhere = self._catalog.committed, options.elsewhere
        if options.if_exists == "replace" or (
            committed.keys().isdisjoint(entries)
            and (not elsewhere or elsewhere.isdisjoint(entries))
        ):
            return np.arange(len(entries)), list(entries)
        fresh = [entry not in committed and entry not in elsewhere for entry in entries]
        return np.flatnonzero(fresh), list(compress(entries, fresh))

    def _take_slots(self, count: int) -> NDArray[np.int64]:
        """Evicts for those that are missing."""
        slots = self._catalog.take_slots(count)
        missing = count - len(slots)
        if missing and self._placement.free_slots(missing):
            slots = np.concatenate((slots, self._catalog.take_slots(missing)))
        return slots

    def _fill_columns(
        self, segment: int, places: tuple[_U64s, _U64s, _U64s], slots: NDArray[np.int64]
    ) -> _U64s:
        """Generations of the slots, which hold (offset, size, checksum) now."""
        rows = self._catalog.table.rows()
        generations: _U64s = rows[slots, HEAD] >> np.uint64(32)
        rows[slots, PLACE] = segment << 32 | 1
        for word, values in zip((OFFSET, LENGTH, CHECKSUM), places, strict=True):
            rows[slots, word] = values
        written = np.uint64(pack_head(0, 1, SlotState.RESERVED))
        rows[slots, HEAD] = generations << np.uint64(32) | written
        return generations

    # -- ending -------------------------------------------------------------------------

    def abort(self, owner: Owner, slot: int, generation: int) -> bool:
        """Frees what is left of an owner's run. False: it is none."""
        run = self._find(owner, slot, generation)
        if run is None:
            return False
        self._discard(run)
        return True

    def end_owner(self, owner: Owner, *, stopped: bool) -> None:
        """As of other reservations: unless the writer has `stopped`, runs go to quarantine."""
        for slot in tuple(owner.runs):
            run = self._runs[slot]
            if stopped:
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


def _flags(options: RunOptions) -> int:
    return (SOFT_PINNED if options.soft_pin else 0) | (0 if options.ttl_s is None else VOLATILE)


def _numbers(packed: bytes) -> list[int]:
    return memoryview(packed).cast("Q").tolist()


def _column(packed: bytes) -> _U64s:
    return np.frombuffer(packed, np.uint64)


def _stretches(pieces: Pieces) -> Iterator[Pieces]:
    """Neighbouring pieces of different entries, as many as there are."""
    begin, seen = 0, set[bytes]()
    for index, entry in enumerate(pieces.entries):
        if entry in seen:
            yield _slice(pieces, begin, index)
            begin = index
            seen.clear()
        seen.add(entry)
    yield _slice(pieces, begin, len(pieces.entries))


def _slice(pieces: Pieces, begin: int, stop: int) -> Pieces:
    entries, *columns = pieces
    return Pieces(entries[begin:stop], *(column[8 * begin : 8 * stop] for column in columns))


def _spread(values: NDArray[np.integer], positions: NDArray[np.int64], count: int) -> bytes:
    """u32 each, 0 where no position is."""
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


def _check_few(run: _Run, offsets: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Where each piece stops. Raises InvalidRequest unless they lie in order in what is left of
    the run."""
    stops, reached = [], run.front
    for offset, size in zip(offsets, sizes, strict=True):
        alignment = PAGE_BYTES if size >= PAGE_BYTES else CACHE_LINE_BYTES
        stop = offset + (-(-size // alignment) or 1) * alignment
        if offset < reached or offset % alignment or stop > run.end:
            raise _misplaced(offset, size, reached, run.end)
        stops.append(stop)
        reached = stop
    return stops


def _skipped_few(
    front: int, offsets: Sequence[int], chosen: Sequence[int], stops: Sequence[int]
) -> list[Span]:
    """As `_skipped`."""
    skipped = []
    for index in chosen:
        if offsets[index] > front:
            skipped.append((front, offsets[index]))
        front = stops[index]
    if stops[-1] > front:
        skipped.append((front, stops[-1]))
    return skipped


def _check_columns(run: _Run, offsets: _U64s, sizes: _U64s) -> NDArray[np.int64]:
    """As `_check_few`, for at least one piece."""
    for index in {int(np.argmax(offsets)), int(np.argmax(sizes))}:
        if max(offsets[index], sizes[index]) > run.end:  # the sums below stay within 64 bits
            raise _misplaced(int(offsets[index]), int(sizes[index]), run.front, run.end)
    begins, lengths = offsets.astype(np.int64), sizes.astype(np.int64)
    stops = begins + occupied_bytes_of(lengths)
    before = np.concatenate(([run.front], stops[:-1]))
    alignments = np.where(lengths >= PAGE_BYTES, PAGE_BYTES, CACHE_LINE_BYTES)
    wrong = (begins < before) | (begins % alignments != 0) | (stops > run.end)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise _misplaced(int(begins[index]), int(lengths[index]), int(before[index]), run.end)
    return stops


def _misplaced(offset: int, size: int, front: int, end: int) -> InvalidRequest:
    return InvalidRequest(
        f"an entry of {size} bytes at offset {offset} of a run that is free in {front}..{end}; it "
        f"must lie there whole, at a multiple of {PAGE_BYTES} (of {CACHE_LINE_BYTES} below "
        f"{PAGE_BYTES} bytes)"
    )


def _skipped(
    front: int, offsets: _U64s, kept: NDArray[np.int64], stops: NDArray[np.int64]
) -> list[Span]:
    """What lies between `front` and the last stop, besides the stored pieces: `offsets` to
    `kept`."""
    begins = np.append(offsets.astype(np.int64), stops[-1])
    before = np.concatenate(([front], kept))
    gaps = begins > before
    return list(zip(before[gaps].tolist(), begins[gaps].tolist(), strict=True))
