"""What this process has mapped of one daemon: its slot table, segments to read, granted segments to
write.

An attachment is one life of a daemon. When another instance answers, the old one is retired:
nothing new is read through it, and its memory stays mapped only under views still in use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moontide.transfer import Mapping
from moontide.transfer.types import boot_id

from ... import wire
from ...errors import StoreUnavailable
from ...slots import LAYOUT_VERSION, SlotReader
from ...types import Located
from .connection import Connection


class SegmentTaken(StoreUnavailable):
    """The daemon took a granted segment back, with the reservations in it: reserve again."""


@dataclass(slots=True)
class _Granted:
    mapping: Mapping
    holders: int = 0
    revoked: bool = False


class Attachment:
    """Thread-safe. `slots` is None without shared memory: then everything goes over the socket.
    `on_release(segment)` is called, on any thread, once a revoked segment is unmapped."""

    def __init__(
        self,
        welcome: wire.Welcome,
        slot_table: Mapping | None,
        on_release: Callable[[Attachment, int], None],
    ) -> None:
        self.instance = welcome.instance
        self.inline_bytes = welcome.inline_bytes
        self.max_entry_bytes = welcome.max_entry_bytes
        self.slots = SlotReader(slot_table.buffer) if slot_table else None
        self.retired = False
        self._on_release = on_release
        self._lock = threading.Lock()
        self._readable: dict[int, Mapping] = {}
        self._granted: dict[int, _Granted] = {}
        self._releasing: set[int] = set()

    @property
    def shared_memory(self) -> bool:
        return self.slots is not None

    # -- reading ----------------------------------------------------------------------

    def readable(self, segment: int) -> memoryview | None:
        """The segment's bytes, or None when it must be mapped first."""
        mapping = self._readable.get(segment)
        return mapping.buffer if mapping else None

    def add_readable(self, segment: int, descriptor: int, num_bytes: int) -> memoryview:
        """Takes the descriptor. Raises TransferError when it is not what was announced."""
        mapping = Mapping(descriptor, num_bytes)
        with self._lock:
            return self._readable.setdefault(segment, mapping).buffer

    def is_current(self, located: Located) -> bool:
        """True while the bytes at `located` are the entry's."""
        return self.slots is not None and self.slots.is_current(located.slot, located.generation)

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

    def hold(self, segment: int, reservations: Iterable[tuple[int, int]]) -> memoryview:
        """The granted segment's bytes, which is not given back before `let_go`. Raises SegmentTaken
        when it was already, and with it the reservations (slot, generation) in it."""
        with self._lock:
            granted = self._granted.get(segment)
            if granted is None:
                raise SegmentTaken(f"segment {segment} was taken back")
            granted.holders += 1
        assert self.slots is not None
        if all(self.slots.watermark(*place) is not None for place in reservations):
            return granted.mapping.buffer
        self.let_go(segment)
        raise SegmentTaken(f"segment {segment} was taken back and granted again")

    def let_go(self, segment: int) -> None:
        with self._lock:
            granted = self._granted.get(segment)
            if granted is not None:
                granted.holders -= 1
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
            idle = [segment for segment, granted in self._granted.items() if not granted.holders]
            for segment in idle:
                self._granted.pop(segment).mapping.close()
            self._releasing.update(idle)
            return idle

    def _release_if_idle(self, segment: int) -> None:
        with self._lock:
            granted = self._granted.get(segment)
            if granted is None or not granted.revoked or granted.holders:
                return
            del self._granted[segment]
            granted.mapping.close()
            self._releasing.add(segment)
        self._on_release(self, segment)

    def retire(self) -> None:
        """Another instance answers now: drops the mappings, except under views still in use."""
        with self._lock:
            self.retired = True
            self._readable.clear()
            self._granted = {
                segment: granted for segment, granted in self._granted.items() if granted.holders
            }


class Attachments:
    """The current attachment of one client, shared by its connections."""

    def __init__(self, on_release: Callable[[Attachment, int], None]) -> None:
        self._on_release = on_release
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
            self.current = attachment = Attachment(welcome, table, self._on_release)
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
    mapping = Mapping(descriptor, welcome.slot_table_bytes, reserved=False)
    if welcome.boot_id != boot_id() or welcome.layout_version != LAYOUT_VERSION:
        raise StoreUnavailable(
            f"the store offers memory of boot {welcome.boot_id}, layout {welcome.layout_version}; "
            f"this client is on boot {boot_id()}, layout {LAYOUT_VERSION}"
        )
    return mapping
