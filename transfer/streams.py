"""Layer streams: which layers of which entries must arrive, and what has.

    announced? ──► arrived (checksum as expected) ──► counts towards the watermark
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


class Manifest:
    """Of one hand-off or fetch: entry i has `layers[i]` layers. Checksums (xxh3-64) are known from
    the start or announced one by one, as the writer computes."""

    def __init__(self, layers: Sequence[int]) -> None:
        if not layers or min(layers) < 1:
            raise ValueError(f"a manifest of {list(layers)[:8]} layers; entries have one at least")
        self._states = [bytearray(count) for count in layers]
        self._announced = [bytearray(count) for count in layers]
        self._checksums = [array("Q", bytes(8 * count)) for count in layers]
        self._watermarks = array("L", bytes(array("L").itemsize * len(layers)))
        self._due = sum(layers)
        self._failed: set[int] = set()
        self._notices: Counter[Notice] = Counter()

    def announce(self, entry: int, layer: int, checksum: int) -> bool:
        """The writer says what the layer's bytes sum to. False, and no change, when there is no
        such layer or another checksum was announced before."""
        if not self._has(entry, layer):
            return False
        if self._announced[entry][layer]:
            return self._checksums[entry][layer] == checksum
        self._announced[entry][layer] = 1
        self._checksums[entry][layer] = checksum
        return True

    def arrived(self, entry: int, layer: int, checksum: int) -> Notice:
        """The bytes are there and sum to `checksum`. A layer nobody announced has no checksum to
        match, so it counts as a mismatch."""
        if not self._is_due(entry, layer):
            return self._count(self._not_due(entry, layer))
        if not self._announced[entry][layer] or self._checksums[entry][layer] != checksum:
            self._mark(entry, layer, _Layer.FAILED)
            return self._count(Notice.MISMATCH)
        self._mark(entry, layer, _Layer.ARRIVED)
        return self._count(Notice.NEW)

    def arrived_run(
        self, entry: int, first: int, announced: Sequence[int], found: Sequence[int]
    ) -> Notice:
        """`announce` and `arrived` of layers one after the other, from `first` on, up to one that
        is not NEW; what the last was worth."""
        stop = first + len(found)
        if self._is_untouched(entry, first, stop) and list(announced) == list(found):
            self._announced[entry][first:stop] = bytes([1]) * len(found)
            self._checksums[entry][first:stop] = array("Q", found)
            self._states[entry][first:stop] = bytes([_Layer.ARRIVED]) * len(found)
            self._due -= len(found)
            self._notices[Notice.NEW] += len(found)
            self._advance_watermark(entry)
            return Notice.NEW
        for layer, (expected, checksum) in enumerate(zip(announced, found, strict=True), first):
            self.announce(entry, layer, expected)
            notice = self.arrived(entry, layer, checksum)
            if notice is not Notice.NEW:
                break
        return notice

    def failed(self, entry: int, layer: int) -> Notice:
        """The layer will not come."""
        if not self._is_due(entry, layer):
            return self._count(self._not_due(entry, layer))
        self._mark(entry, layer, _Layer.FAILED)
        return self._count(Notice.NEW)

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

    def _has(self, entry: int, layer: int) -> bool:
        return 0 <= entry < len(self._states) and 0 <= layer < len(self._states[entry])

    def _is_due(self, entry: int, layer: int) -> bool:
        return self._has(entry, layer) and self._states[entry][layer] == _Layer.DUE

    def _is_untouched(self, entry: int, first: int, stop: int) -> bool:
        """Nothing was announced or reported of these layers."""
        return (
            self._has(entry, first)
            and self._has(entry, stop - 1)
            and not any(self._announced[entry][first:stop])
            and not any(self._states[entry][first:stop])
        )

    def _not_due(self, entry: int, layer: int) -> Notice:
        return Notice.REPEATED if self._has(entry, layer) else Notice.UNKNOWN

    def _mark(self, entry: int, layer: int, state: _Layer) -> None:
        states = self._states[entry]
        states[layer] = state
        self._due -= 1
        if state is _Layer.FAILED:
            self._failed.add(entry)
        self._advance_watermark(entry)

    def _advance_watermark(self, entry: int) -> None:
        states = self._states[entry]
        while (
            self._watermarks[entry] < len(states)
            and states[self._watermarks[entry]] == _Layer.ARRIVED
        ):
            self._watermarks[entry] += 1

    def _count(self, notice: Notice) -> Notice:
        self._notices[notice] += 1
        return notice
