"""Two-phase writes: reserve → advance (layers, in order) → commit or abort.

Any number of reservations of one key may be open; the first commit wins. A reservation whose writer
vanished while it could still be writing is quarantined: its space is not used again before the
writer has surely stopped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap

from ..errors import InvalidRequest
from ..keys import block_key_of, is_block
from ..slots import CHECKSUM, HEAD, PLACE, WORDS, WRITTEN, SlotState
from ..types import PutResult, PutStatus, ReserveStatus
from .allocator import occupied_bytes
from .arrivals import Arrivals
from .catalog import DOOMED, STRINGS, Catalog
from .checks import check_checksums, check_same_length
from .ends import DropReason
from .entries import Entries
from .owners import Owner
from .pool import Arena, Holder
from .quarantine import Quarantine
from .refusals import Refusals
from .room import Batch, Room, Wanted
from .shares import Shares
from .types import ExtentCallback, LayerRun, Purpose, ReserveResult
from .watchers import Watchers

_STORED = PutResult(PutStatus.STORED)
_EXISTS = PutResult(PutStatus.EXISTS)
_EXISTS_ALREADY = ReserveResult(ReserveStatus.EXISTS)


class _Group:
    """Slots of one batch that a commit has accepted and not yet published."""

    __slots__ = ("batch", "slots")

    def __init__(self, batch: Batch | None = None) -> None:
        self.batch = batch
        self.slots: list[int] = []


class Reservations:
    """One client may have `max_reserved_ratio` of the pool reserved or in quarantine."""

    def __init__(
        self,
        entries: Entries,
        room: Room,
        shares: Shares,
        refusals: Refusals,
        quarantine: Quarantine,
    ) -> None:
        self._entries = entries
        self._catalog: Catalog = entries.catalog
        self._pool = entries.pool
        self._counters = entries.counters
        self._room = room
        self._shares = shares
        self._refusals = refusals
        self._quarantine = quarantine
        self._open: dict[int, Batch] = {}
        self._found: dict[int, int] = {}  # of these, how often by look-ups
        self.renewed: list[bytes] = []  # string entries the last commit stored
        self.watchers = Watchers()
        self.arrivals = Arrivals()

    def __len__(self) -> int:
        return len(self._open)

    def count_found(self, slots: Sequence[int]) -> None:
        """Each is a hit; one that is still written once it is whole, and a miss if it ends
        before."""
        unfinished = [slot for slot in slots if slot in self._open] if self._open else []
        for slot in unfinished:
            self._found[slot] = self._found.get(slot, 0) + 1
        self._counters.hits += len(slots) - len(unfinished)

    def check_integrity(self) -> list[str]:
        over = self._found.keys() - self._open.keys()
        return [f"slot {slot} was found and is no reservation" for slot in over]

    # -- reserving ----------------------------------------------------------------------

    def reserve(
        self,
        batch: Batch,
        entries: Sequence[bytes],
        sizes: Sequence[int],
        num_extents: Iterable[int],
        now: float,
    ) -> list[ReserveResult]:
        committed = self._catalog.visible
        elsewhere = self._catalog.filling if batch.origin else batch.elsewhere
        keep = batch.if_exists != "replace"
        most = self._pool.settings.segment_bytes
        writers = self._writers(batch)
        results = []
        for wanted in starmap(Wanted, zip(entries, sizes, num_extents, strict=True)):
            if (keep and wanted.entry in committed) or wanted.entry in elsewhere:
                results.append(_EXISTS_ALREADY)
            elif wanted.num_bytes > most:
                reason = f"{wanted.num_bytes} bytes; an entry has at most {most} (one segment)"
                results.append(ReserveResult(ReserveStatus.FAILED, reason=reason))
            else:
                results.append(self._reserve_one(batch, writers, wanted, now))
        self._entries.announce_evictions()
        self._tell_arrivals(
            [
                entry
                for entry, result in zip(entries, results, strict=True)
                if result.status is ReserveStatus.RESERVED
            ]
        )
        return results

    def _tell_arrivals(self, entries: Sequence[bytes]) -> None:
        if self.arrivals:
            self.arrivals.changed({block_key_of(entry) for entry in entries if is_block(entry)})

    def _writers(self, batch: Batch) -> tuple[Arena, ...]:
        """Whose segments it may lie in, the first choice first. The daemon may write where the
        client may."""
        pool, client = self._pool, batch.owner.client
        if batch.shared_memory:
            return pool.arena_of(client), pool.daemon
        if pool.holds_grants(client):
            return pool.daemon, pool.arenas[client]
        return (pool.daemon,)

    def _reserve_one(
        self, batch: Batch, writers: Sequence[Arena], wanted: Wanted, now: float
    ) -> ReserveResult:
        client, occupied = batch.owner.client, occupied_bytes(wanted.num_bytes)
        if not self._shares.admits(client, occupied):
            return self._refuse(batch, self._refusals.beyond_share(client, wanted.num_bytes))
        if batch.origin is not None:
            space = self._room.take_for_copy(wanted.num_bytes, now)
        elif batch.near_cap:
            space = self._room.take_little(writers, wanted.num_bytes, now)
        else:
            space = self._room.take(writers, wanted.num_bytes, now)
        if space is None:
            return self._refuse(batch, self._refusals.no_room(wanted.num_bytes))
        generation = self._room.enter(batch, wanted, space, now)
        self._open[space.slot] = batch
        batch.owner.reserved.add(space.slot)
        self._counters.reserved_bytes += occupied
        self._shares.take(client, occupied)
        return ReserveResult(
            ReserveStatus.RESERVED,
            space.slot,
            generation,
            space.segment,
            space.offset,
            batch.shared_memory and self._is_granted(space.segment),
        )

    def refuse(
        self, batch: Batch, entries: Sequence[bytes], refusal: ReserveResult
    ) -> list[ReserveResult]:
        """All that are not committed."""
        here = self._catalog.visible
        return [
            _EXISTS_ALREADY if entry in here else self._refuse(batch, refusal) for entry in entries
        ]

    def _refuse(self, batch: Batch, refusal: ReserveResult) -> ReserveResult:
        if batch.origin is None:
            self._refusals.count(1)
        return refusal

    # -- writing ------------------------------------------------------------------------

    def advance(
        self,
        owner: Owner,
        slots: Sequence[int],
        generations: Sequence[int],
        extent: int,
        checksums: Sequence[int],
    ) -> None:
        check_same_length(slots=slots, generations=generations, checksums=checksums)
        self.advance_runs(
            owner,
            [
                LayerRun(slot, generation, extent, (checksum,))
                for slot, generation, checksum in zip(slots, generations, checksums, strict=True)
            ],
        )

    def advance_runs(self, owner: Owner, runs: Sequence[LayerRun]) -> None:
        words = self._catalog.words
        for slot, generation, first, checksums in runs:
            check_checksums(checksums)
            self.check_open(owner, slot, generation)
            watermark, num_extents = self._progress(slot)
            if watermark != first or first + len(checksums) > num_extents:
                raise InvalidRequest(
                    f"extent {first} of slot {slot} was reported, {len(checksums)} at once; next "
                    f"is {watermark} of {num_extents}"
                )
        watched: list[tuple[int, int]] = []
        for slot, generation, first, checksums in runs:
            self._set_checksums(slot, first, checksums)
            stop = first + len(checksums)
            words[slot * WORDS + HEAD] = generation << 32 | stop << 8 | SlotState.RESERVED
            if slot in self.watchers:
                watched.append((slot, stop))
        self.watchers.advanced(watched)

    def announce_checksums(
        self, owner: Owner, slot: int, generation: int, checksums: Sequence[int]
    ) -> None:
        """What the extents will sum up to, known before they are here."""
        check_checksums(checksums)
        self.check_open(owner, slot, generation)
        _, num_extents = self._progress(slot)
        if len(checksums) != num_extents:
            raise InvalidRequest(
                f"{len(checksums)} checksums for slot {slot}, which has {num_extents} extents"
            )
        self._set_checksums(slot, 0, checksums)

    def doom_edition(self, edition: int) -> None:
        """As `Catalog.doom_fills`, of all that is being written of that edition of a namespace."""
        catalog = self._catalog
        for slot in self._open:
            if catalog.namespaces[slot] == edition:
                catalog.flags[slot] |= DOOMED
                for place in (catalog.pending, catalog.filling):
                    if place.get(catalog.keys[slot]) == slot:
                        del place[catalog.keys[slot]]

    def carry_over(self, renewed: Mapping[int, int]) -> None:
        """Editions were replaced by others: what clients write of them belongs to those now, what
        comes from elsewhere is doomed."""
        catalog = self._catalog
        numbers = catalog.namespaces
        catalog.doom_fills(
            [entry for entry, slot in catalog.filling.items() if numbers[slot] in renewed]
        )
        for slot in self._open:
            if numbers[slot] in renewed and not catalog.flags[slot] & DOOMED:
                numbers[slot] = renewed[numbers[slot]]

    def commit(
        self,
        owner: Owner,
        slots: Sequence[int],
        generations: Sequence[int],
        checksums: Sequence[int],
        now: float,
    ) -> list[PutResult]:
        check_checksums(checksums)
        check_same_length(slots=slots, generations=generations)
        if checksums:
            check_same_length(slots=slots, checksums=checksums)
        results = []
        self.renewed = []
        group = _Group()
        sums: Sequence[int | None] = checksums or [None] * len(slots)
        for slot, generation, checksum in zip(slots, generations, sums, strict=True):
            if not self._is_open(owner, slot, generation):
                self._counters.stale_notices += 1
                results.append(PutResult(PutStatus.FAILED, "no such reservation"))
                continue
            failure = self._complete(slot, generation, checksum)
            if failure is not None:
                results.append(failure)
                continue
            batch = self._close(slot)
            if group.batch is not batch or batch.if_exists == "replace":
                self._publish(group, now)
                group = _Group(batch)
            results.append(self._become_visible(slot, batch, group, now))
        self._publish(group, now)
        return results

    def abort(self, owner: Owner, places: Iterable[tuple[int, int]]) -> int:
        """`places` are slots with their generations."""
        ended = 0
        for slot, generation in places:
            if self._is_open(owner, slot, generation):
                self._discard(slot)
                ended += 1
            else:
                self._counters.stale_notices += 1
        return ended

    def check_open(self, owner: Owner, slot: int, generation: int) -> None:
        """Raises InvalidRequest (counted) unless it is an open reservation of the owner."""
        if not self._is_open(owner, slot, generation):
            self._counters.stale_notices += 1
            raise InvalidRequest(f"slot {slot}, generation {generation}: no such reservation")

    def purpose(self, owner: Owner, slot: int, generation: int) -> Purpose | None:
        """Of an open reservation of the owner."""
        if not self._is_open(owner, slot, generation):
            return None
        batch = self._open[slot]
        return Purpose(self._catalog.entry(slot), batch.if_exists, batch.replicas)

    def _is_open(self, owner: Owner, slot: int, generation: int) -> bool:
        batch = self._open.get(slot)
        return (
            batch is not None
            and batch.owner is owner
            and self._catalog.words[slot * WORDS] >> 32 == generation
        )

    def _progress(self, slot: int) -> tuple[int, int]:
        """(watermark, number of extents)"""
        words, position = self._catalog.words, slot * WORDS
        return words[position] >> 8 & 0xFFFF, words[position + PLACE] & 0xFFFFFFFF

    def _set_checksums(self, slot: int, first: int, checksums: Sequence[int]) -> None:
        table = self._catalog.checksums.get(slot)
        if table is None:
            for checksum in checksums:  # of its only extent
                self._catalog.words[slot * WORDS + CHECKSUM] = checksum
        else:
            struct.pack_into(f"<{len(checksums)}Q", table, 8 * first, *checksums)

    def _complete(self, slot: int, generation: int, checksum: int | None) -> PutResult | None:
        """Marks all extents complete; a failure when they are not."""
        watermark, num_extents = self._progress(slot)
        if checksum is not None and num_extents == 1:
            words, position = self._catalog.words, slot * WORDS
            words[position + CHECKSUM] = checksum
            words[position] = generation << 32 | 1 << 8 | SlotState.RESERVED
        elif watermark < num_extents:
            reason = f"extent {watermark} of {num_extents} is not written"
            return PutResult(PutStatus.FAILED, reason)
        return None

    def _become_visible(self, slot: int, batch: Batch, group: _Group, now: float) -> PutResult:
        catalog = self._catalog
        key = catalog.keys[slot]
        if catalog.flags[slot] & DOOMED:
            self._end(slot)
            return PutResult(PutStatus.FAILED, "removed while it was written")
        self._entries.expire_among([key], now)
        is_new_value = batch.namespace == STRINGS and batch.origin is None
        if is_new_value:
            catalog.doom_fills([key])  # of the value that was there before
        existing = catalog.committed.get(key)
        if existing is not None:
            if batch.if_exists != "replace" and not catalog.is_retired(existing):
                self._end(slot)
                return _EXISTS
            self._entries.drop([existing], DropReason.REPLACED)
        if is_new_value:
            self.renewed.append(key)
        catalog.committed[key] = slot
        group.slots.append(slot)
        self._counters.hits += self._found.pop(slot, 0)
        if slot in self.watchers:
            self.watchers.advanced([(slot, self._progress(slot)[1])])
        return _STORED

    def _publish(self, group: _Group, now: float) -> None:
        slots, batch = group.slots, group.batch
        if not slots or batch is None:
            return
        end = batch.end(now)
        if end is not None:
            for slot in slots:
                self._entries.expiry.set(slot, end)
        self._entries.publish(slots, batch.parents, now)
        self._tell_arrivals([self._catalog.keys[slot] for slot in slots])

    def watch(
        self, slot: int, generation: int, extent: int, callback: ExtentCallback
    ) -> Callable[[], None]:
        state = self._catalog.find(slot, generation)
        if state in WRITTEN:
            watermark, num_extents = self._progress(slot)
            if not 0 <= extent < num_extents:
                raise InvalidRequest(f"extent {extent} of slot {slot}; it has {num_extents}")
            if extent >= watermark:
                return self.watchers.add(slot, extent, callback)
        callback(state in WRITTEN)
        return _nothing

    # -- ending -------------------------------------------------------------------------

    def end_owner(self, owner: Owner, *, stopped: bool) -> None:
        """The connection is over. Unless its writer has `stopped` for sure, what it can still
        write goes to quarantine."""
        for slot in tuple(owner.reserved):
            if self._is_writing(slot) and not stopped:
                batch = self._close(slot)
                self._quarantine.take_in(slot, batch.owner.client)
                self._tell_ended(slot)
            else:
                self._discard(slot)

    def end_in_segment(self, owner: Owner, segment: int) -> None:
        """The owner's process can no longer write the segment."""
        for slot in tuple(owner.reserved):
            if self._entries.segment_of(slot) == segment and self._is_writing(slot):
                self._discard(slot)

    def _is_writing(self, slot: int) -> bool:
        """Whether the client itself fills it, rather than the daemon with what it is sent."""
        return self._open[slot].shared_memory and self._is_granted(self._entries.segment_of(slot))

    def _is_granted(self, segment: int) -> bool:
        return self._pool.segments[segment].holder is Holder.GRANTED

    def _discard(self, slot: int) -> None:
        self._close(slot)
        self._end(slot)

    def _end(self, slot: int) -> None:
        """Frees a closed reservation; while readers of its layers pin it, it is quarantined."""
        self._entries.set_state(slot, SlotState.QUARANTINED)
        self._entries.end(slot)
        self._tell_ended(slot)

    def _tell_ended(self, slot: int) -> None:
        self.watchers.ended(slot)
        self._counters.misses += self._found.pop(slot, 0)

    def _close(self, slot: int) -> Batch:
        """The reservation is over; what becomes of the slot is the caller's next step."""
        batch = self._open.pop(slot)
        batch.owner.reserved.discard(slot)
        catalog = self._catalog
        occupied = self._entries.occupied(slot)
        self._counters.reserved_bytes -= occupied
        self._shares.give_back(batch.owner.client, occupied)
        catalog.origins.pop(slot, None)
        place = catalog.filling if batch.origin else catalog.pending
        if place.get(catalog.keys[slot]) == slot:
            del place[catalog.keys[slot]]
        return batch


def _nothing() -> None:
    """Cancels a watch that has been answered."""
