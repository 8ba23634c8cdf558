"""The stream of KV events of one daemon: a bounded ring with sequence numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from ..events import EventKind, KvEvent

MAX_EVENTS = 8192
MAX_RING_BYTES = 4 << 20
SNAPSHOT_ENTRIES = 1024
"""Most entry ids in one event of a snapshot."""

Listener = Callable[[KvEvent], None]


class Holding(NamedTuple):
    """Entries that lie in one (instance, tier, namespace), as the contents of a snapshot."""

    instance: str
    tier: str
    namespace: str  # digest, hex
    entries: Sequence[bytes]


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """An event as the ring keeps it: packed into one blob. Small objects that live as long as the
    ring would be strewn over the heap and keep it from shrinking after a clear."""

    kind: EventKind
    instance: str
    tier: str
    namespace: str
    entries: list[bytes]
    parent: bytes


_PACK = msgspec.msgpack.Encoder().encode
_UNPACK = msgspec.msgpack.Decoder(_Record).decode


def _event(seq: int, record: _Record) -> KvEvent:
    return KvEvent(
        seq=seq,
        kind=record.kind,
        instance=record.instance,
        tier=record.tier,
        namespace=record.namespace,
        entries=tuple([entry.hex() for entry in record.entries]),
        parent=record.parent.hex(),
    )


class Snapshot(NamedTuple):
    """All that is stored as of event `seq`. `events` are `stored` events that carry that seq; the
    iterator holds references to the ids, not copies, and stays right while the store changes."""

    seq: int
    events: Iterator[KvEvent]


class EventLog:
    """Keeps the last `MAX_EVENTS` events, fewer when they fill `MAX_RING_BYTES`. Listeners are
    called in the order of events, from within the change that caused them."""

    def __init__(self, contents: Callable[[], Iterable[Holding]]) -> None:
        self._contents = contents
        self._ring: deque[bytes] = deque()
        self._ring_bytes = 0
        self._listeners: list[Listener] = []
        self.seq = 0

    def publish(
        self,
        kind: EventKind,
        *,
        instance: str,
        tier: str,
        namespace: str = "",
        entries: Sequence[bytes] = (),
        parent: bytes = b"",
    ) -> None:
        self.seq += 1
        record = _Record(kind, instance, tier, namespace, list(entries), parent)
        packed = _PACK(record)
        self._ring.append(packed)
        self._ring_bytes += len(packed)
        while len(self._ring) > MAX_EVENTS or self._ring_bytes > MAX_RING_BYTES:
            self._ring_bytes -= len(self._ring.popleft())
        if self._listeners:
            event = _event(self.seq, record)
            for listener in tuple(self._listeners):
                listener(event)

    def since(self, seq: int) -> list[KvEvent] | None:
        """Events after `seq`, oldest first; None when the ring no longer holds all of them (or
        `seq` lies ahead): take a snapshot."""
        missing = self.seq - seq
        if not 0 <= missing <= len(self._ring):
            return None
        if not missing:
            return []
        return [
            _event(seq + number, _UNPACK(packed))
            for number, packed in enumerate(list(self._ring)[-missing:], start=1)
        ]

    def snapshot(self) -> Snapshot:
        return Snapshot(self.seq, _stored_events(self.seq, self._contents()))

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event from now on, until the returned function is called."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel


def _stored_events(seq: int, holdings: Iterable[Holding]) -> Iterator[KvEvent]:
    for instance, tier, namespace, entries in holdings:
        for start in range(0, len(entries), SNAPSHOT_ENTRIES):
            yield KvEvent(
                seq=seq,
                kind="stored",
                instance=instance,
                tier=tier,
                namespace=namespace,
                entries=tuple([entry.hex() for entry in entries[start : start + SNAPSHOT_ENTRIES]]),
            )
