"""Room for large values: the cheapest window of neighbours, by whatever policy, and no more than it
takes."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.store.eviction import POLICIES, EvictionName
from moontide.kvstore.store.window import Extents, cheapest_window
from moontide.kvstore.types import ReserveStatus
from moontide.transfer.types import Instance

from .conftest import SEGMENT_BYTES, MakeNode, Node

KiB, MiB = 1 << 10, 1 << 20
QUARTER = SEGMENT_BYTES // 4


def window(
    free_from: int, spans: list[tuple[int, int, float, bool]], want: int
) -> list[int] | None:
    starts, stops, values, held = zip(*spans, strict=True)
    extents = Extents(
        np.arange(10, 10 + len(spans)),
        np.array(starts),
        np.array(stops),
        np.array(values, float),
        np.array(held),
    )
    found = cheapest_window(extents, free_from, want, 64)
    return found.slots if found else None


def test_window_is_the_cheapest_run_that_makes_room() -> None:
    spans = [(0, 64, 9.0, False), (64, 128, 1.0, False), (192, 256, 2.0, False)]
    assert window(256, spans, 64) == [11]
    assert window(256, spans, 128) == [11]  # with the hole behind it
    assert window(256, spans, 192) == [11, 12]
    assert window(256, spans, 256) == [10, 11, 12]
    assert window(256, spans, 320) is None


def test_window_never_crosses_what_is_held() -> None:
    spans = [(0, 64, 1.0, False), (64, 128, 1.0, True), (128, 192, 5.0, False)]
    assert window(192, spans, 64) == [10]
    assert window(192, spans, 128) is None
    assert window(320, spans, 128) == [12]


def test_window_starts_aligned() -> None:
    spans = [(32, 64, 1.0, False), (64, 128, 5.0, False)]
    assert window(192, spans, 64) == [10]
    assert window(192, [(0, 32, 9.0, False), (32, 64, 1.0, False), (64, 192, 1.0, False)], 64) == [
        12
    ]


Span = tuple[int, int, float, bool]


@st.composite
def segments(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """A segment's bytes and what lies in it, in units of 32 bytes."""
    spans: list[Span] = []
    end = 0
    for _ in range(draw(st.integers(1, 12))):
        start = end + 32 * draw(st.integers(0, 3))
        end = start + 32 * draw(st.integers(1, 6))
        spans.append((start, end, float(draw(st.integers(0, 9))), draw(st.booleans())))
    return end + 32 * draw(st.integers(0, 3)), spans


def cheapest_by_trial(segment_bytes: int, spans: list[Span], want: int) -> float | None:
    values = []
    for first in range(len(spans)):
        for last in range(first, len(spans)):
            run = spans[first : last + 1]
            begin = spans[first - 1][1] if first else 0
            end = spans[last + 1][0] if last + 1 < len(spans) else segment_bytes
            if math.ceil(begin / 64) * 64 + want <= end and not any(held for *_, held in run):
                values.append(sum(value for _, _, value, _ in run))
    return min(values, default=None)


@settings(max_examples=300, deadline=None)
@given(segment=segments(), units=st.integers(1, 20))
def test_no_other_run_of_neighbours_is_cheaper(segment: tuple[int, list[Span]], units: int) -> None:
    segment_bytes, spans = segment
    chosen = window(segment_bytes, spans, 32 * units)
    cheapest = cheapest_by_trial(segment_bytes, spans, 32 * units)
    assert (chosen is None) == (cheapest is None)
    if chosen is not None:
        assert chosen == list(range(chosen[0], chosen[-1] + 1))
        assert sum(spans[slot - 10][2] for slot in chosen) == cheapest


def put(node: Node, owner: int, key: str, num_bytes: int) -> ReserveStatus:
    """Without bytes: where they would lie is what matters here."""
    reserved = node.reserve(owner, key, num_bytes)
    if reserved.status is ReserveStatus.RESERVED:
        node.store.commit(owner, [reserved.slot], [reserved.generation], [7], node.now)
    return reserved.status


def used_bytes(node: Node) -> int:
    return node.store.stats(node.now).tiers["dram"].used_bytes


@pytest.mark.parametrize("policy", POLICIES)
def test_mixed_sizes_find_room_in_a_full_pool_and_evict_little(
    make_node: MakeNode, policy: EvictionName
) -> None:
    """From a cache line to a segment, some hit now and then."""
    node = make_node(eviction=policy, dram_bytes=16 * SEGMENT_BYTES)
    owner = node.connect()
    rng = random.Random(5)
    for number in range(1500):
        node.now += 0.1
        num_bytes = int(2 ** rng.uniform(6, 16))
        before = used_bytes(node)
        assert put(node, owner, f"k{number}", num_bytes) is ReserveStatus.RESERVED
        evicted = before + num_bytes - used_bytes(node)
        if num_bytes > SEGMENT_BYTES // 2:
            assert evicted <= 4 * num_bytes
        node.get(owner, f"k{rng.randrange(number + 1)}")
    node.check()


@pytest.mark.parametrize("segment_bytes", [64 * MiB, 256 * MiB])
def test_values_of_64_mib_among_mixed_ones_evict_at_most_four_times_their_size(
    make_node: MakeNode, segment_bytes: int
) -> None:
    node = make_node(dram_bytes=512 * MiB, segment_bytes=segment_bytes)
    owner = node.connect()
    rng = random.Random(11)
    worst = 0.0
    for number in range(600):
        node.now += 0.01
        is_large = number % 20 == 19
        num_bytes = 64 * MiB if is_large else int(2 ** rng.uniform(12, 26))
        before = used_bytes(node)
        assert put(node, owner, f"k{number}", num_bytes) is ReserveStatus.RESERVED
        if is_large:
            worst = max(worst, (before + num_bytes - used_bytes(node)) / num_bytes)
    assert 0 < worst <= 4
    node.check()


def test_the_cheapest_window_of_all_segments_goes(make_node: MakeNode) -> None:
    """The coldest entry's segment is not always where room costs least."""
    node = make_node(dram_bytes=2 * SEGMENT_BYTES, eviction="lru")
    owner = node.connect()
    for index in range(8):
        put(node, owner, f"k{index}", QUARTER)  # k0…k3 in one segment, k4…k7 in the other
    for _ in range(40):
        for index in (1, 2, 3):
            node.get(owner, f"k{index}")
    assert put(node, owner, "large", SEGMENT_BYTES) is ReserveStatus.RESERVED
    assert node.has("k1", "k2", "k3") == [True] * 3
    assert not any(node.has("k4", "k5", "k6", "k7"))


def test_what_lies_on_disk_too_goes_first(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=2 * SEGMENT_BYTES)
    slots: dict[str, tuple[int, int]] = {}
    owner = node.connect()
    for index in range(8):
        reserved = node.reserve(owner, f"k{index}", QUARTER)
        node.store.commit(owner, [reserved.slot], [reserved.generation], [7], node.now)
        slots[f"k{index}"] = reserved.slot, reserved.generation
    for index in range(4, 8):
        node.store.mark_flushed(*slots[f"k{index}"])
    assert put(node, owner, "large", SEGMENT_BYTES) is ReserveStatus.RESERVED
    assert not any(node.has("k4", "k5", "k6", "k7"))


def test_pins_alone_refuse_a_put_and_at_once(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=2 * SEGMENT_BYTES, max_pin_ratio=1.0, max_total_pin_ratio=1.0)
    owner = node.connect()
    for index in range(8):
        put(node, owner, f"k{index}", QUARTER)
    ticket = node.pin(owner, "k1")
    node.pin(owner, "k5")
    assert put(node, owner, "large", SEGMENT_BYTES) is ReserveStatus.FULL
    assert put(node, owner, "half", SEGMENT_BYTES // 2) is ReserveStatus.RESERVED
    node.store.unpin(owner, ticket)
    node.now += 1
    assert put(node, owner, "large", SEGMENT_BYTES) is ReserveStatus.RESERVED


def test_entry_limits_take_from_the_writer_whose_entries_are_worth_least(
    make_node: MakeNode,
) -> None:
    node = make_node(max_entries=20, dram_bytes=4 * SEGMENT_BYTES)
    idle = node.connect(Instance.new("idle"))
    busy = node.connect(Instance.new("busy"))
    for index in range(8):
        node.put(idle, f"idle{index}", b"x", shared_memory=True)
    for turn in range(40):
        node.now += 1
        assert node.put(busy, f"busy{turn}", b"x", shared_memory=True) is ReserveStatus.RESERVED
    entries = [string_entry_id(f"idle{index}") for index in range(8)]
    assert not any(node.store.exists(entries, node.now))
