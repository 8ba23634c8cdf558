"""What a reader will want next, once it goes through string entries in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...nvme import NvmeLocation

MAX_STREAMS = 16
"""Readers that are followed at once; the one heard of least recently is forgotten."""
MAX_ENTRIES = 64
Place = tuple[int, int]
"""(region, ordinal) in the log."""
Following = Callable[[Place, int], Sequence[NvmeLocation]]
"""String entries that stand after a place, in order, at most so many."""


class _Stream(NamedTuple):
    """A reader that is expected to go on: `last` was brought for it, with a window of so many
    bytes."""

    last: Place
    window: int
    mark: bytes


class ReadAhead:
    """Two reads in a row, the second beginning where the first ended, make a stream; for it
    entries are brought before they are asked for, twice as many each time, `max_bytes` at most.
    Half of them used is the sign to go on. Decides only: both methods return what to bring."""

    def __init__(self, following: Following, *, max_bytes: int) -> None:
        self._following = following
        self._max_bytes = max_bytes
        self._expected: dict[Place, _Stream] = {}  # by where its reader would miss next
        self._marks: dict[bytes, Place] = {}  # entry whose use is the sign → key of `_expected`

    def brought(self, locations: Sequence[NvmeLocation]) -> Sequence[NvmeLocation]:
        """These lay on disk and were asked for."""
        places = [_place(location) for location in locations]
        stream = self._forget(min(places))
        if stream is None:
            self._expect(max(places), 0, b"")
            return ()
        brought = sum([location.length for location in locations])
        return self._go_on(max(places), max(stream.window, brought))

    def used(self, entries: Sequence[bytes]) -> Sequence[NvmeLocation]:
        """These were asked for, wherever they lay."""
        marks = self._marks
        if not marks:
            return ()
        ahead: list[NvmeLocation] = []
        for entry in entries:
            if entry in marks and (stream := self._forget(marks[entry])) is not None:
                ahead += self._go_on(stream.last, stream.window)
        return ahead

    def _go_on(self, last: Place, window: int) -> Sequence[NvmeLocation]:
        window = min(2 * window, self._max_bytes)
        ahead: list[NvmeLocation] = []
        for location in self._following(last, MAX_ENTRIES):
            window -= location.length
            if window < 0:
                break
            ahead.append(location)
        if ahead:
            num_bytes = sum([location.length for location in ahead])
            self._expect(_place(ahead[-1]), num_bytes, ahead[len(ahead) // 2].entry)
        return ahead

    def _expect(self, last: Place, window: int, mark: bytes) -> None:
        following = self._following(last, 1)
        if not following:
            return
        place = _place(following[0])
        self._forget(place)
        self._expected[place] = _Stream(last, window, mark)
        if mark:
            self._marks[mark] = place
        if len(self._expected) > MAX_STREAMS:
            self._forget(next(iter(self._expected)))

    def _forget(self, place: Place) -> _Stream | None:
        stream = self._expected.pop(place, None)
        if stream is not None:
            self._marks.pop(stream.mark, None)
        return stream


def _place(location: NvmeLocation) -> Place:
    return location.region, location.ordinal
