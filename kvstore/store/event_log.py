"""The stream of KV events of one daemon: a bounded ring with sequence numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..events import EventKind, KvEvent

MAX_EVENTS = 8192
MAX_ENTRY_IDS = 65536
SNAPSHOT_ENTRIES = 1024
"""Most entry ids in one event of a snapshot."""

Listener = Callable[[KvEvent], None]


class Holding(NamedTuple):
    """Entries that lie in one (instance, tier, namespace), as the contents of a snapshot."""

    instance: str
    tier: str
    namespace: str  # digest, hex
    entries: Sequence[bytes]


class Snapshot(NamedTuple):
    """All that is stored as of event `seq`. `events` are `stored` events that carry that seq; the
    iterator holds references to the ids, not copies, and stays right while the store changes."""

    seq: int
    events: Iterator[KvEvent]


class EventLog:
    """Keeps the last `MAX_EVENTS` events, fewer when they name more than `MAX_ENTRY_IDS` entries.
    Listeners are called in the order of events, from within the change that caused them."""

    def __init__(self, contents: Callable[[], list[Holding]]) -> None:
        self._contents = contents
        self._ring: deque[KvEvent] = deque()
        self._num_ids = 0
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
        event = KvEvent(
            seq=self.seq,
            kind=kind,
            instance=instance,
            tier=tier,
            namespace=namespace,
            entries=tuple([entry.hex() for entry in entries]),
            parent=parent.hex(),
        )
        self._ring.append(event)
        self._num_ids += len(entries)
        while len(self._ring) > MAX_EVENTS or self._num_ids > MAX_ENTRY_IDS:
            self._num_ids -= len(self._ring.popleft().entries)
        for listener in tuple(self._listeners):
            listener(event)

    def since(self, seq: int) -> list[KvEvent] | None:
        """Events after `seq`, oldest first; None when the ring no longer holds all of them (or
        `seq` lies ahead): take a snapshot."""
        missing = self.seq - seq
        if not 0 <= missing <= len(self._ring):
            return None
        return list(self._ring)[-missing:] if missing else []

    def snapshot(self) -> Snapshot:
        return Snapshot(self.seq, _stored_events(self.seq, self._contents()))

    def on_event(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event from now on, until the returned function is called."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel


def _stored_events(seq: int, holdings: list[Holding]) -> Iterator[KvEvent]:
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
