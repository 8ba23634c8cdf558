"""Reading ahead of those who go through string entries in the order of the log."""

from __future__ import annotations

from collections.abc import Sequence

from moontide.kvstore.daemon.tiers.read_ahead import MAX_STREAMS, ReadAhead
from moontide.kvstore.nvme import NvmeLocation
from moontide.kvstore.nvme.records import Names, Place, encode_record

NUM_RECORDS = 200
LENGTH = 100


def record(number: int) -> NvmeLocation:
    """As they stand in the log: regions of 50."""
    place = Place(1 + number // 50, number % 50, 4096, 1)
    names = Names(b"", b"", b"%d" % number)
    body = encode_record(
        place, names, element_bytes=1, stored_lengths=[LENGTH], lengths=[LENGTH], checksums=[1]
    )
    return NvmeLocation(body)


def after(place: tuple[int, int], limit: int) -> Sequence[NvmeLocation]:
    first = (place[0] - 1) * 50 + place[1] + 1
    return [record(number) for number in range(first, min(first + limit, NUM_RECORDS))]


def numbers(locations: Sequence[NvmeLocation]) -> list[int]:
    return [int(location.entry) for location in locations]


def read(ahead: ReadAhead, *wanted: int) -> list[int]:
    return numbers(ahead.brought([record(number) for number in wanted]))


def test_the_second_read_in_a_row_is_read_ahead_of_and_each_half_used_more() -> None:
    ahead = ReadAhead(after, max_bytes=10 * LENGTH)
    assert read(ahead, 0, 1) == []
    assert read(ahead, 2, 3) == [4, 5, 6, 7]
    assert numbers(ahead.used([b"4", b"5"])) == []
    assert numbers(ahead.used([b"6"])) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert numbers(ahead.used([b"12"])) == list(range(16, 26))  # no more than max_bytes
    assert numbers(ahead.used([b"12"])) == []


def test_a_stream_goes_on_in_the_next_region() -> None:
    ahead = ReadAhead(after, max_bytes=4 * LENGTH)
    assert read(ahead, 47) == []
    assert read(ahead, 48) == [49, 50]
    assert read(ahead, 51) == [52, 53, 54, 55]  # the mark was not used, but all before was


def test_reads_in_no_order_and_the_end_of_the_log_bring_nothing_ahead() -> None:
    ahead = ReadAhead(after, max_bytes=4 * LENGTH)
    for number in (5, 70, 3, 160, 90):
        assert read(ahead, number) == []
    assert read(ahead, NUM_RECORDS - 2) == []
    assert read(ahead, NUM_RECORDS - 1) == []


def test_so_many_readers_are_followed_and_the_oldest_is_forgotten() -> None:
    ahead = ReadAhead(after, max_bytes=4 * LENGTH)
    starts = [number * 10 for number in range(MAX_STREAMS + 1)]
    for start in starts:
        assert read(ahead, start) == []
    assert read(ahead, starts[1] + 1) != []
    assert read(ahead, starts[0] + 1) == []
