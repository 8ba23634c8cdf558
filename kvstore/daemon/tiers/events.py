"""KV events of the NVMe tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ...events import EventKind
from ...keys import block_key_of
from ...nvme import NvmeEntry
from ...store import Store
from ...types import Tier

MAX_EVENT_ENTRIES = 4096


def announce(store: Store, kind: EventKind, entries: Sequence[NvmeEntry]) -> None:
    """Publishes what became durable on disk or left it, chains as one event."""
    for run in _runs(entries):
        store.events.publish(
            kind,
            instance=str(store.instance),
            tier=Tier.NVME,
            namespace=run[0].namespace,
            entries=[entry.entry for entry in run],
            parent=run[0].parent if kind == "stored" else b"",
        )


def _runs(entries: Sequence[NvmeEntry]) -> Iterator[list[NvmeEntry]]:
    for _, group in groupby(entries, key=lambda entry: entry.namespace):
        run: list[NvmeEntry] = []
        for entry in group:
            if run and (len(run) >= MAX_EVENT_ENTRIES or not _follows(entry, run[-1])):
                yield run
                run = []
            run.append(entry)
        yield run


def _follows(entry: NvmeEntry, last: NvmeEntry) -> bool:
    """String entries are no chain: any number of them is one run."""
    if not entry.namespace:
        return True
    same_block = block_key_of(entry.entry) == block_key_of(last.entry)
    return same_block or entry.parent == block_key_of(last.entry)
