"""How much of a fill is asked for at once, by numbers alone."""

from __future__ import annotations

import pytest

from moontide.kvstore.daemon.peers.pace import CHUNK_SECONDS, FIRST_BYTES, MOST_BYTES, ChunkPace


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 1e8, 1e10])
def test_a_chunk_is_what_comes_in_its_time_whatever_was_waited_for_between(
    bytes_per_s: float,
) -> None:
    pace, now = ChunkPace(), 1000.0
    for idle in (0.0, 5.0, 0.0):
        now += idle
        pace.asked(now)
        pace.asked(now)  # comes after the first
        for _ in range(2):
            now += 1e6 / bytes_per_s
            pace.came(1_000_000, now)
    expected = min(bytes_per_s * CHUNK_SECONDS, MOST_BYTES)
    assert pace.chunk_bytes() == pytest.approx(expected, rel=0.01)


def test_until_something_came_little_is_asked_for() -> None:
    pace = ChunkPace()
    assert pace.chunk_bytes() == FIRST_BYTES
    pace.asked(1.0)
    pace.came(0, 9.0)  # it failed
    assert pace.chunk_bytes() == FIRST_BYTES
