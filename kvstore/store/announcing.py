"""What the store tells of its DRAM entries: events, and what a snapshot holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..events import EventKind
from ..keys import block_key_of, is_block
from ..types import Tier
from .catalog import STRINGS, Catalog
from .event_log import EventLog, Holding

MAX_EVENT_ENTRIES = 4096


class EntryEvents:
    """`namespace_digest` turns a namespace number into the digest that events carry (hex, "" for
    strings)."""

    def __init__(
        self,
        catalog: Catalog,
        events: EventLog,
        *,
        instance: str,
        namespace_digest: Callable[[int], str],
    ) -> None:
        self.catalog = catalog
        self._events = events
        self._instance = instance
        self._namespace_digest = namespace_digest
        self._evicted: dict[int, list[bytes]] = {}  # by namespace, not yet announced

    def _announced(self, slots: Sequence[int]) -> Sequence[int]:
        """Those that others know to be here: all but what one request needs for itself, and what
        went as a whole."""
        scoped, told = self.catalog.request_scoped, self.catalog.told
        if not scoped and not told:
            return slots
        numbers = self.catalog.namespaces
        return [slot for slot in slots if slot not in scoped and numbers[slot] not in told]

    def announce(
        self, kind: EventKind, namespace: int, entries: Sequence[bytes], parent: bytes = b""
    ) -> None:
        self.announce_evictions()
        self._publish(kind, namespace, entries, parent)

    def announce_cleared(self, namespace: int = STRINGS) -> None:
        """Everything in this tier is gone; with a `namespace`, all blocks of that."""
        self.announce_evictions()
        self._events.publish(
            "cleared",
            instance=self._instance,
            tier=Tier.DRAM,
            namespace=self._namespace_digest(namespace),
        )

    def announce_evictions(self) -> None:
        evicted, self._evicted = self._evicted, {}
        for namespace, entries in evicted.items():
            self._publish("removed", namespace, entries)

    def _publish(
        self, kind: EventKind, namespace: int, entries: Sequence[bytes], parent: bytes = b""
    ) -> None:
        for start in range(0, max(len(entries), 1), MAX_EVENT_ENTRIES):
            part = entries[start : start + MAX_EVENT_ENTRIES]
            self._events.publish(
                kind,
                instance=self._instance,
                tier=Tier.DRAM,
                namespace=self._namespace_digest(namespace),
                entries=part,
                parent=parent,
            )
            if kind == "stored" and is_block(part[-1]):
                parent = block_key_of(part[-1])

    def _announce_chain(
        self, namespace: int, entries: Sequence[bytes], parents: dict[bytes, bytes]
    ) -> None:
        """`stored` events for blocks in chain order, one for each unbroken run."""
        run: list[bytes] = []
        for entry in entries:
            key = block_key_of(entry)
            last = block_key_of(run[-1]) if run else key
            if run and key != last and parents[key] != last:
                self.announce("stored", namespace, run, parents[block_key_of(run[0])])
                run = []
            run.append(entry)
        if run:
            self.announce("stored", namespace, run, parents[block_key_of(run[0])])

    def holdings(self) -> list[Holding]:
        """Committed entries by namespace."""
        catalog = self.catalog
        committed = self._announced(list(catalog.committed.values()))
        slots = np.fromiter(committed, np.int64, len(committed))
        numbers = np.frombuffer(catalog.namespaces, np.uint16)[slots]
        return [
            Holding(
                self._instance,
                Tier.DRAM,
                self._namespace_digest(number),
                catalog.keys[slots[numbers == number]].tolist(),
            )
            for number in np.unique(numbers).tolist()
        ]
