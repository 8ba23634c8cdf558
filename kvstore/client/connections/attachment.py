"""What this process has mapped of one daemon: its slot table, segments to read, granted segments to
write.

An attachment is one life of a daemon. When another instance answers, the old one is retired:
nothing new is read through it, and its memory stays mapped only under views still in use.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from moontide.transfer import Mapping
from moontide.transfer.types import boot_id

from ... import wire
from ...errors import StoreUnavailable
from ...slots import LAYOUT_VERSION, SlotReader
from ...types import Located
from ..counters import ClientCounters
from ..locations import Locations
from ..mapped_values import MappedValues
from ..notes import Notes
from .connection import Connection

NOTES_VERSION = 2
"""Of the wire: the first with NoteUse, runs, and header slots that tell WITHDRAWN entries."""


class SegmentTaken(StoreUnavailable):
    """The daemon took a granted segment back, with the reservations in it: reserve again."""


@dataclass(frozen=True, slots=True)
class AttachmentHooks:
    """What an attachment tells its client. `on_release(attachment, segment)`, on any thread: a
    revoked segment is unmapped. `on_due()`: there are notes to send."""

    on_release: Callable[[Attachment, int], None]
    on_due: Callable[[], None]
    counters: ClientCounters


class Holder:
    """Keeps granted segments from being given back, from `hold` to `end`. Who is interrupted at any
    point in between has one to end already, or has lost it: then it ends by that."""

    __slots__ = ("__weakref__", "_segments", "attachment", "reference")

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.reference = weakref.ref(self)
        self._segments: list[int] = []

    def hold(self, segment: int, reservations: Iterable[tuple[int, int]]) -> memoryview:
        """See `Attachment.hold`."""
        self._segments.append(segment)
        return self.attachment.hold(segment, reservations, self)

    def end(self) -> None:
        """Idempotent."""
        while self._segments:
            self.attachment.let_go(self._segments[-1], self)
            self._segments.pop()


@dataclass(slots=True)
class _Granted:
    mapping: Mapping
    holders: set[weakref.ref[Holder]] = field(default_factory=set)
    revoked: bool = False

    def is_held(self) -> bool:
        return any(reference() is not None for reference in self.holders)


class Attachment:
    """Thread-safe. `slots` is None without shared memory: then everything goes over the socket.
    `locations` is None without it too, and with a daemon that does not know of them (version
    1)."""

    def __init__(
        self, welcome: wire.Welcome, slot_table: Mapping | None, hooks: AttachmentHooks
    ) -> None:
        self.instance = welcome.instance
        self.version = welcome.version
        self.takes_notes = welcome.version >= NOTES_VERSION
        self.inline_bytes = welcome.inline_bytes
        self.max_entry_bytes = welcome.max_entry_bytes
        self.pool_bytes = sum(welcome.segment_sizes)
        self.slots = SlotReader(slot_table.buffer) if slot_table else None
        self.run_bytes = welcome.run_bytes if self.takes_notes else 0
        self.sums_may_follow = welcome.sums_may_follow
        self.retired = False
        self.notes = Notes()
        self.values: MappedValues | None = None
        self.locations: Locations | None = None
        self._on_release = hooks.on_release
        self._on_due = hooks.on_due
        self._lock = threading.Lock()
        self._readable: dict[int, memoryview] = {}
        self._fresh: dict[int, Mapping] = {}  # readable, pages still come by faults
        self._granted: dict[int, _Granted] = {}
        self._releasing: set[int] = set()
        if slot_table:
            words = slot_table.buffer.cast("Q")
            self.values = MappedValues(words, self._readable, hooks.counters)
            if self.takes_notes:
                self.locations = Locations(
                    self.values, notes=self.notes, counters=hooks.counters, on_due=self._due
                )

    @property
    def shared_memory(self) -> bool:
        return self.slots is not None

    # -- reading ----------------------------------------------------------------------

    def readable(self, segment: int) -> memoryview | None:
        """The segment's bytes, or None when it must be mapped first."""
        return self._readable.get(segment)

    def add_readable(self, segment: int, descriptor: int, num_bytes: int) -> memoryview:
        """Takes the descriptor. Raises TransferError when it is not what was announced."""
        mapping = Mapping(descriptor, num_bytes)
        with self._lock:
            if segment not in self._readable:
                self._readable[segment] = mapping.buffer
                self._fresh[segment] = mapping
            return self._readable[segment]

    def prepare_readable(self) -> None:
        """Maps all pages of segments that earlier calls began to read. The first call takes faults
        where it reads, so that it does not wait for a whole segment."""
        while self._fresh:
            try:
                _, mapping = self._fresh.popitem()
            except KeyError:  # another thread was faster
                return
            mapping.prepare(0, mapping.num_bytes)

    def _due(self) -> None:
        self.prepare_readable()
        self._on_due()

    def is_current(self, located: Located) -> bool:
        """True while a key leads to the bytes at `located`."""
        return self.slots is not None and self.slots.is_current(located.slot, located.generation)

    def is_intact(self, located: Located) -> bool:
        """True while the bytes at `located` are the entry's."""
        return self.slots is not None and self.slots.is_intact(located.slot, located.generation)

    def forget_locations(self) -> None:
        """A connection has ended: perhaps the daemon has."""
        if self.locations is not None:
            self.locations.clear()

    # -- writing ----------------------------------------------------------------------
    #
    #   unmapped ──add_granted──► mapped ──revoked, not held──► releasing ──released──► unmapped
    # While it is releasing, a new grant of the same segment cannot be told from the old one.

    def is_granted(self, segment: int) -> bool:
        """True while the segment is mapped writable."""
        return segment in self._granted

    def has_granted(self) -> bool:
        return bool(self._granted)

    def add_granted(self, segment: int, descriptor: int, num_bytes: int) -> None:
        """Takes the descriptor. Raises TransferError when it is not what was announced,
        SegmentTaken while the segment is being given back."""
        mapping = Mapping(descriptor, num_bytes, writable=True)
        with self._lock:
            if segment in self._releasing:
                mapping.close()
                raise SegmentTaken(f"segment {segment} is being given back")
            self._granted.setdefault(segment, _Granted(mapping))

    def hold(
        self, segment: int, reservations: Iterable[tuple[int, int]], holder: Holder
    ) -> memoryview:
        """The granted segment's bytes, which is not given back before `let_go`. Raises SegmentTaken
        when it was already, and with it the reservations (slot, generation) in it."""
        with self._lock:
            granted = self._granted.get(segment)
            if granted is None:
                raise SegmentTaken(f"segment {segment} was taken back")
            granted.holders.add(holder.reference)
        assert self.slots is not None
        for slot, generation in reservations:
            if self.slots.watermark(slot, generation) is None:
                raise SegmentTaken(f"segment {segment} was taken back and granted again")
        return granted.mapping.buffer

    def prepare(self, segment: int, offset: int, num_bytes: int) -> None:
        """A range of a held segment is about to be written."""
        granted = self._granted.get(segment)
        if granted is not None:
            granted.mapping.prepare(offset, num_bytes)

    def let_go(self, segment: int, holder: Holder) -> None:
        """Nothing happens when it does not hold it."""
        with self._lock:
            granted = self._granted.get(segment)
            if granted is not None:
                granted.holders.discard(holder.reference)
                if not granted.revoked:
                    return
        self._release_if_idle(segment)

    def revoke(self, segment: int) -> None:
        """The daemon wants a grant back: now, or when nobody holds it any more."""
        with self._lock:
            granted = self._granted.get(segment)
            if granted is not None:
                granted.revoked = True
            elif segment not in self._releasing:
                self._releasing.add(segment)
                self._on_release(self, segment)
        self._release_if_idle(segment)

    def released(self, segment: int) -> None:
        """The daemon knows that the segment is unmapped."""
        with self._lock:
            self._releasing.discard(segment)

    def unmap_granted(self) -> list[int]:
        """Unmaps every granted segment that nobody holds; which."""
        with self._lock:
            idle = [segment for segment, granted in self._granted.items() if not granted.is_held()]
            for segment in idle:
                self._granted.pop(segment).mapping.close()
            self._releasing.update(idle)
            return idle

    def _release_if_idle(self, segment: int) -> None:
        with self._lock:
            granted = self._granted.get(segment)
            if granted is None or not granted.revoked or granted.is_held():
                return
            del self._granted[segment]
            granted.mapping.close()
            self._releasing.add(segment)
        self._on_release(self, segment)

    def retire(self) -> None:
        """Another instance answers now: drops the mappings, except under views still in use."""
        with self._lock:
            self.retired = True
            self.forget_locations()
            self._readable.clear()
            self._fresh.clear()
            self._granted = {
                segment: granted for segment, granted in self._granted.items() if granted.is_held()
            }


class Attachments:
    """The current attachment of one client, shared by its connections."""

    def __init__(self, hooks: AttachmentHooks) -> None:
        self._hooks = hooks
        self._lock = threading.Lock()
        self.current: Attachment | None = None

    def adopt(self, connection: Connection) -> Attachment:
        """The attachment for a connection just greeted. Raises StoreUnavailable when the memory it
        announces cannot be trusted, TransferError when it cannot be mapped."""
        welcome = connection.welcome
        table = _map_slot_table(connection) if welcome.shared_memory else None
        with self._lock:
            current = self.current
            if current is not None and current.instance == welcome.instance:
                return current
            self.current = attachment = Attachment(welcome, table, self._hooks)
        if current is not None:
            current.retire()
        return attachment

    def close(self) -> None:
        with self._lock:
            current, self.current = self.current, None
        if current is not None:
            current.retire()


def _map_slot_table(connection: Connection) -> Mapping:
    welcome = connection.welcome
    descriptor = connection.reader.take_descriptor()
    mapping = Mapping(descriptor, welcome.slot_table_bytes)
    if welcome.boot_id != boot_id() or welcome.layout_version != LAYOUT_VERSION:
        raise StoreUnavailable(
            f"the store offers memory of boot {welcome.boot_id}, layout {welcome.layout_version}; "
            f"this client is on boot {boot_id()}, layout {LAYOUT_VERSION}"
        )
    return mapping
