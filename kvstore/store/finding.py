"""Finding what a store holds, and holding it while it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TypeVar

from ..keys import BlockKey, EntryId
from ..layout import Shard
from ..slots import HEAD, LENGTH, WORDS, SlotState
from ..types import Located
from .catalog import DOOMED, SOFT_PINNED
from .checks import check_chain, check_keys
from .coverage import Finder, ways
from .parts import StoreParts
from .slot_table import NO_SLOT
from .types import BlocksFound, OwnerId

E = TypeVar("E", bound=bytes)


class StoreFinding(StoreParts):
    """Lookups, pins, and waiting for what is not there yet."""

    def lookup(
        self, owner: OwnerId, entries: Sequence[EntryId], pin_s: float | None, now: float
    ) -> tuple[list[Located | None], bytes]:
        """One `Located` or None an entry, and a ticket (b"" without a pin or a hit). `pin_s`: None
        no pin, 0 a view that ends with its owner, > 0 a ticket with that TTL. Raises OutOfSpace
        when the client would pin more than its share."""
        requester = self._owners.get(owner)
        if pin_s is None:
            return self._find(entries, lambda hits: b"", now)
        return self._find(entries, lambda hits: self._pins.take(requester, hits, pin_s, now), now)

    def lookup_to_send(
        self, owner: OwnerId, entries: Sequence[EntryId], now: float
    ) -> tuple[list[Located | None], bytes]:
        """As `lookup`, for bytes that leave straight from the pool: one entry may always be on its
        way to a client. Raises OutOfSpace for more than its share."""
        requester = self._owners.get(owner)
        return self._find(entries, lambda hits: self._pins.take_to_send(requester, hits), now)

    def _find(
        self, entries: Sequence[EntryId], pin: Callable[[list[int]], bytes], now: float
    ) -> tuple[list[Located | None], bytes]:
        self._entries.expire_among(entries, now)
        slots = self._slots_of(entries)
        hits = [*filter(None, slots)]
        ticket = pin(hits) if hits else b""
        self._entries.touch(hits, now)
        self._count(hits, len(slots) - len(hits))
        return self._contents.locate_all(slots), ticket

    def peek(self, entries: Sequence[EntryId], now: float) -> list[Located | None]:
        """As `lookup` without a pin, which is no use of them: nothing is counted, nor warmer."""
        self._entries.expire_among(entries, now)
        return self._contents.locate_all(self._slots_of(entries))

    def locate(self, entries: Sequence[EntryId], now: float) -> tuple[list[int], list[int]]:
        """Slots (NO_SLOT: a miss) and generations, for who reads the slot table. Hand both to
        `note_lookup` once there is time for it."""
        self._entries.expire_among(entries, now)
        slots, words = self._slots_of(entries), self._catalog.words
        return slots, [words[slot * WORDS + HEAD] >> 32 for slot in slots]

    def _slots_of(self, entries: Sequence[EntryId]) -> list[int]:
        return [*map(self._catalog.visible.get, entries, repeat(NO_SLOT))]

    def note_lookup(self, slots: Sequence[int], generations: Sequence[int], now: float) -> None:
        """What `locate` found. What has gone since is skipped."""
        self._count(self._touch_current(slots, generations, now), slots.count(NO_SLOT))

    def _count(self, hits: Sequence[int], num_misses: int) -> None:
        words, counters = self._catalog.words, self._counters
        counters.hits += len(hits)
        counters.misses += num_misses
        counters.bytes_out += sum([words[slot * WORDS + LENGTH] for slot in hits])

    def _touch_current(
        self, slots: Sequence[int], generations: Sequence[int], now: float
    ) -> list[int]:
        """Those that are still committed."""
        words, num_slots = self._catalog.words, len(self._catalog.flags)
        current = []
        for slot, generation in zip(slots, generations, strict=True):
            head = words[slot * WORDS + HEAD] if slot < num_slots else 0
            if head >> 32 == generation and head & 0xFF == SlotState.COMMITTED:
                current.append(slot)
        self._entries.touch(current, now)
        return current

    def lookup_blocks(
        self,
        owner: OwnerId,
        namespace: int,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard],
        *,
        pin_s: float | None,
        pending: bool,
        now: float,
        local_only: bool = False,
        held: bytes = b"",
    ) -> BlocksFound:
        """Longest prefix of `keys` whose stored shards cover `coverage`, no longer than what the
        client may pin; see `lookup` for pins, of which one block must fit. Entries that fill count,
        with `local_only` those from this node's disk; `pending` also counts what clients still
        write. In the statistics these are hits once they are whole, and what the ticket `held` pins
        is none again."""
        check_chain(keys, coverage)
        requester = self._owners.get(owner)
        found = self._finder(namespace, coverage, pending, local_only).prefix(keys)
        ticket = b""
        if pin_s is not None and found.slots:
            room = self._pins.room(requester, found.slots)
            found = found.within(max(room, len(found.blocks[0])))
            ticket = self._pins.take(requester, found.slots, pin_s, now)
        self._entries.touch(reversed(found.slots), now)
        self._reservations.count_found(self._pins.others(held, found.slots))
        self._counters.misses += (len(keys) - len(found.blocks)) * len(coverage)
        checksums = self._contents.checksums(found.slots)
        transports, peers = ways(self._catalog, found.blocks)
        return BlocksFound(found.blocks, found.shards, checksums, ticket, transports, peers)

    def covers(
        self,
        namespace: int,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard],
        *,
        local_only: bool = False,
    ) -> bool:
        """Whether every block is committed or filling, see `lookup_blocks`."""
        check_chain(keys, coverage)
        finder = self._finder(namespace, coverage, False, local_only)
        return all(finder.block(key) is not None for key in keys)

    def touch_blocks(
        self, namespace: int, keys: Sequence[BlockKey], coverage: Sequence[Shard], now: float
    ) -> None:
        """Those that are here are about to be used, also behind one that is not: what is brought to
        go with them must not take their place."""
        check_chain(keys, coverage)
        finder = self._finder(namespace, coverage, False)
        found = [slot for key in keys for slot in (finder.block(key) or {}).values()]
        self._entries.touch(reversed(found), now)

    def missing(
        self, namespace: int, keys: Sequence[BlockKey], coverage: Sequence[Shard]
    ) -> list[int]:
        """Positions of `keys` whose blocks are neither committed nor filling."""
        check_chain(keys, coverage)
        finder = self._finder(namespace, coverage, False)
        return [index for index, key in enumerate(keys) if finder.block(key) is None]

    def covering(
        self, namespace: int, present: Sequence[bytes], coverage: Sequence[Shard]
    ) -> list[Shard] | None:
        """Those of the `present` shards (packed) that a reader of `coverage` needs; None when they
        do not cover it."""
        opened = self._namespaces.get(namespace)
        needed: dict[bytes, None] = {}
        for wanted in [shard.pack() for shard in coverage]:
            plan = (wanted,) if wanted in present else opened.cover(tuple(present), wanted)
            if plan is None:
                return None
            needed.update(dict.fromkeys(plan))
        return [Shard.unpack(packed) for packed in needed]

    def watch_block(self, key: BlockKey, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever something of this block was reserved or committed, until the returned
        function is called. Raises Busy beyond the bound."""
        check_keys([key])
        return self._reservations.arrivals.watch(key, callback)

    def _finder(
        self,
        namespace: int,
        coverage: Sequence[Shard],
        pending: bool,
        local_only: bool = False,
    ) -> Finder:
        catalog, opened = self._catalog, self._namespaces.get(namespace)
        wanted = [shard.pack() for shard in coverage]
        for shard in wanted:
            opened.geometry(shard)
        filling = catalog.local_fill if local_only else catalog.filling.get
        places = [catalog.committed.get, filling]
        if pending:
            places.append(catalog.pending.get)
        return Finder(catalog, opened, wanted, places)

    def is_pinned(self, slot: int, generation: int) -> bool:
        """Whether anybody holds that entry; False when it is gone."""
        state = self._catalog.find(slot, generation)
        return state is not SlotState.FREE and self._catalog.pins[slot] > 0

    def is_current(self, slot: int, generation: int) -> bool:
        """Whether that entry is found under its key, or will be once it is written."""
        catalog = self._catalog
        if catalog.find(slot, generation) not in (SlotState.RESERVED, SlotState.COMMITTED):
            return False
        return not catalog.is_retired(slot) and not catalog.flags[slot] & DOOMED

    def exists(self, entries: Sequence[bytes], now: float) -> list[bool]:
        absent = set(self.absent(entries, now))
        return [entry not in absent for entry in entries]

    def absent(self, entries: Sequence[E], now: float) -> list[E]:
        """Those that are not here."""
        self._entries.expire_among(entries, now)
        absent = self._catalog.absent(entries)
        return [entry for entry in entries if entry in absent] if absent else []

    def is_none_here(self, entries: Sequence[EntryId], now: float) -> bool:
        """As whether all are `absent`, at less cost."""
        self._entries.expire_among(entries, now)
        return self._catalog.visible.keys().isdisjoint(entries)

    def lifetimes(self, entries: Sequence[EntryId], now: float) -> list[float | None]:
        """Seconds until each ends by itself; None for those that do not, or are not here."""
        visible, expiry = self._catalog.visible, self._entries.expiry
        slots = [visible.get(entry) for entry in entries]
        return [None if slot is None else expiry.left(slot, now) for slot in slots]

    def soft_pinned(self, entries: Sequence[EntryId]) -> bytes:
        """1 for each that is evicted last, 0 for the others and for what is not here."""
        visible, flags = self._catalog.visible, self._catalog.flags
        slots = [visible.get(entry) for entry in entries]
        return bytes([slot is not None and bool(flags[slot] & SOFT_PINNED) for slot in slots])

    def unpin(self, owner: OwnerId, ticket: bytes, read_bytes: int = 0) -> None:
        """Ends a view of this owner, or a ticket of anyone; `read_bytes` were read under it. Raises
        InvalidRequest (counted) on an unknown one or another owner's view."""
        self._pins.release(self._owners.get(owner), ticket)
        self._counters.bytes_out += read_bytes

    def let_go(self, owner: OwnerId, ticket: bytes) -> None:
        """As `unpin`, of a ticket that may have ended meanwhile (counted)."""
        self._pins.let_go(self._owners.get(owner), ticket)

    def note_use(
        self,
        owner: OwnerId,
        slots: Sequence[int],
        generations: Sequence[int],
        read_bytes: int,
        now: float,
    ) -> list[bytes]:
        """What a client has read without asking counts like a lookup's hits. Returns which entries
        those were; generations that are gone are skipped."""
        used = self._touch_current(slots, generations, now)
        self._counters.hits += len(used)
        self._counters.bytes_out += read_bytes
        keys = self._catalog.keys
        return [keys[slot] for slot in used]

    def renew(self, ticket: bytes, ttl_s: float, now: float) -> None:
        """Raises InvalidRequest on an unknown or expired ticket, or a view."""
        self._pins.expire(now)
        self._pins.renew(ticket, ttl_s, now)
