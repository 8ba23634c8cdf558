"""Layer streams: which layers of which entries must arrive, and what has.

    due ──► arrived (checksum as announced) ──► counts towards the watermark
         └► failed

A pure class: whoever moves and verifies the bytes reports here, in any order, and asks how far the
stream has come.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter
from collections.abc import Sequence


class Notice(enum.Enum):
    """What a report was worth. Only the first report of a layer changes anything."""

    NEW = "new"
    REPEATED = "repeated"  # that layer had arrived or failed before
    UNKNOWN = "unknown"  # no such entry or layer in this manifest
    MISMATCH = "mismatch"  # another checksum than the writer's: the layer has failed


class _Layer(enum.IntEnum):
    DUE = 0
    ARRIVED = 1
    FAILED = 2


_ARRIVED = bytes([_Layer.ARRIVED])


class Manifest:
    """Of one hand-off or fetch: entry i has `layers[i]` layers."""

    def __init__(self, layers: Sequence[int]) -> None:
        if not layers or min(layers) < 1:
            raise ValueError(f"a manifest of {list(layers)[:8]} layers; entries have one at least")
        self._states = [bytearray(count) for count in layers]
        self._watermarks = array("L", bytes(array("L").itemsize * len(layers)))
        self._due = sum(layers)
        self._failed: set[int] = set()
        self._notices: Counter[Notice] = Counter()

    def arrived(self, entry: int, first: int, announced: list[int], found: list[int]) -> Notice:
        """Layers one after the other, from `first` on, are there and sum to `found`; their writer
        says `announced` (xxh3-64). Taken up to one that is not NEW; what the last was worth."""
        if announced == found and self._are_due(entry, first, len(found)):
            return self._mark(entry, first, len(found), _Layer.ARRIVED)
        for layer, (expected, checksum) in enumerate(zip(announced, found, strict=True), first):
            if not self._are_due(entry, layer, 1):
                return self._not_due(entry, layer)
            if expected != checksum:
                return self._mark(entry, layer, 1, _Layer.FAILED, Notice.MISMATCH)
            self._mark(entry, layer, 1, _Layer.ARRIVED)
        return Notice.NEW

    def failed(self, entry: int, layer: int) -> Notice:
        """The layer will not come."""
        if not self._are_due(entry, layer, 1):
            return self._not_due(entry, layer)
        return self._mark(entry, layer, 1, _Layer.FAILED)

    def watermark(self, entry: int) -> int:
        """Leading layers of the entry that have arrived."""
        return self._watermarks[entry]

    @property
    def is_whole(self) -> bool:
        """Every layer of every entry has arrived."""
        return not self._due and not self._failed

    @property
    def is_ended(self) -> bool:
        """Nothing is due any more."""
        return not self._due

    @property
    def failed_entries(self) -> list[int]:
        """Entries with a failed layer, ascending: exactly these are to be recomputed."""
        return sorted(self._failed)

    def notices(self, notice: Notice) -> int:
        """Reports of that kind so far."""
        return self._notices[notice]

    def check_integrity(self) -> None:
        """Recomputes the accounting."""
        states = [list(map(_Layer, entry)) for entry in self._states]
        assert self._due == sum(entry.count(_Layer.DUE) for entry in states)
        assert self._failed == {i for i, entry in enumerate(states) if _Layer.FAILED in entry}
        for entry, watermark in zip(states, self._watermarks, strict=True):
            assert all(state is _Layer.ARRIVED for state in entry[:watermark])
            assert watermark == len(entry) or entry[watermark] is not _Layer.ARRIVED

    def _are_due(self, entry: int, first: int, count: int) -> bool:
        """These layers are in the manifest, and nothing was reported of them."""
        return (
            0 <= entry < len(self._states)
            and first >= 0
            and self._states[entry][first : first + count] == bytes(count)
        )

    def _not_due(self, entry: int, layer: int) -> Notice:
        is_known = 0 <= entry < len(self._states) and 0 <= layer < len(self._states[entry])
        return self._count(Notice.REPEATED if is_known else Notice.UNKNOWN, 1)

    def _mark(
        self,
        entry: int,
        first: int,
        count: int,
        state: _Layer,
        notice: Notice = Notice.NEW,
    ) -> Notice:
        states = self._states[entry]
        states[first : first + count] = bytes([state]) * count
        self._due -= count
        if state is _Layer.FAILED:
            self._failed.add(entry)
        self._watermarks[entry] = len(states) - len(states.lstrip(_ARRIVED))
        return self._count(notice, count)

    def _count(self, notice: Notice, count: int) -> Notice:
        self._notices[notice] += count
        return notice
