"""Values copied from memory that another thread may give up meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from moontide.kvstore.client.counters import ClientCounters
from moontide.kvstore.client.mapped_values import COMMITTED, MappedValues
from moontide.kvstore.client.targets import AS_BYTES
from moontide.transfer import CopyHelper

SEGMENT = 3


class Retired(Mapping[int, memoryview]):
    """Segments that are gone once they have been looked at `looks` times: another thread has found
    another daemon."""

    def __init__(self, segments: dict[int, memoryview], looks: int) -> None:
        self._segments = segments
        self._looks = looks

    def __getitem__(self, segment: int) -> memoryview:
        self._looks -= 1
        if self._looks < 0:
            raise KeyError(segment)
        return self._segments[segment]

    def __iter__(self) -> Iterator[int]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)


@pytest.fixture
def helper() -> Iterator[CopyHelper]:
    helper = CopyHelper()
    yield helper
    helper.close()


@pytest.mark.parametrize("looks", range(5))
def test_a_segment_that_goes_while_a_batch_is_copied_leaves_misses(
    helper: CopyHelper, looks: int
) -> None:
    segments = Retired({SEGMENT: memoryview(b"firstsecond")}, looks)
    words = memoryview(bytearray(16 * 8)).cast("Q")
    words[0] = words[8] = COMMITTED
    places = [(0, COMMITTED, SEGMENT, 0, 5, 0), (8, COMMITTED, SEGMENT, 5, 6, 0)]
    results: list[bytes | None] = [None, None]
    MappedValues(words, segments, ClientCounters()).copy_all(
        places, [0, 1], AS_BYTES, results, helper
    )
    assert results == [b"first" if looks > 0 else None, b"second" if looks > 1 else None]
