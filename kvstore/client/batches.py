"""Splitting a batch of any size into messages within the wire's limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..keys import MAX_STRING_KEY_BYTES, EntryId
from ..wire import MAX_KEYS

MAX_ENTRY_ID_BYTES = 4 << 20
"""Of one message, which also carries up to 32 bytes more an entry."""
MAX_VALUE_BYTES = 8 << 20
"""Values of one message, unless a single value is larger."""
_ALWAYS_FIT = min(MAX_KEYS, MAX_ENTRY_ID_BYTES // (1 + MAX_STRING_KEY_BYTES))
"""Entries, however long their keys are."""


def batches(
    entries: Sequence[EntryId],
    sizes: Sequence[int] = (),
    most_bytes: int = MAX_VALUE_BYTES,
    most_entries: int = MAX_KEYS,
) -> Iterator[slice]:
    """Consecutive runs of `entries` that fit one message each; `sizes` are those of the values that
    go with them, which may have `most_bytes` together unless a single one has more."""
    if len(entries) <= _ALWAYS_FIT and sum(sizes) <= most_bytes:
        for start in range(0, len(entries), most_entries):
            yield slice(start, min(start + most_entries, len(entries)))
        return
    start = id_bytes = value_bytes = 0
    for index, entry in enumerate(entries):
        size = sizes[index] if sizes else 0
        too_many = (
            index - start >= most_entries
            or id_bytes + len(entry) > MAX_ENTRY_ID_BYTES
            or value_bytes + size > most_bytes
        )
        if index > start and too_many:
            yield slice(start, index)
            start, id_bytes, value_bytes = index, 0, 0
        id_bytes += len(entry)
        value_bytes += size
    if len(entries) > start:
        yield slice(start, len(entries))
