"""How much of a fill is asked for at once, by numbers alone."""

from __future__ import annotations

import pytest

from moontide.kvstore.daemon.peers.pace import CHUNK_SECONDS, FIRST_BYTES, MOST_BYTES, ChunkPace


def come(pace: ChunkPace, now: float, bytes_per_s: float, count: int) -> float:
    """So many chunks of 1 MB, two at a time, one after the other; when they have."""
    pace.asked(now)
    for _ in range(count):
        pace.asked(now)
        now += 1e6 / bytes_per_s
        pace.came(1_000_000, now)
    now += 1e6 / bytes_per_s
    pace.came(1_000_000, now)
    return now


@pytest.mark.parametrize("bytes_per_s", [1e5, 1e6, 1e8, 1e10])
def test_a_chunk_is_what_comes_in_its_time_whatever_was_waited_for_between(
    bytes_per_s: float,
) -> None:
    pace = ChunkPace()
    now = come(pace, 1000.0, bytes_per_s, 3)
    come(pace, now + 100.0, bytes_per_s, 3)
    expected = min(bytes_per_s * CHUNK_SECONDS, MOST_BYTES)
    assert pace.chunk_bytes() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("before", "after"), [(1e8, 1e6), (1e6, 1e8)])
def test_a_peer_whose_pace_changed_is_known_anew(before: float, after: float) -> None:
    pace = ChunkPace()
    now = come(pace, 0.0, before, 500)
    come(pace, now, after, max(20, int(10 * after / 1e6)))
    assert pace.chunk_bytes() == pytest.approx(after * CHUNK_SECONDS, rel=0.2)


def test_until_something_came_little_is_asked_for() -> None:
    pace = ChunkPace()
    assert pace.chunk_bytes() == FIRST_BYTES
    pace.asked(1.0)
    pace.came(0, 9.0)  # it failed
    assert pace.chunk_bytes() == FIRST_BYTES
