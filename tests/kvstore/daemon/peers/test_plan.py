"""Which layer is read when, and what comes of it: random orders against simple rules."""

from __future__ import annotations

import random
from array import array
from collections import deque

import pytest

from moontide.kvstore import BlockKey, Shard, Tier
from moontide.kvstore.daemon.peers.offers import RemoteEntry
from moontide.kvstore.daemon.peers.plan import FillPlan, Piece, Read

NUM_LAYERS = 3
SHARD = Shard(0, (0, NUM_LAYERS), (0, 1))
SUMS = array("Q", [11, 12, 13])


def piece(number: int, extents: int = NUM_LAYERS) -> Piece:
    return Piece(
        key=BlockKey(bytes([number]) * 16),
        shard=SHARD,
        slot=number,
        generation=1,
        memory=memoryview(bytearray(30)),
        num_extents=NUM_LAYERS,
        stride=10,
        extent_bytes=8,
        remote=remote(number, extents),
    )


def remote(number: int, extents: int) -> RemoteEntry:
    return RemoteEntry(SHARD, 100 + number, 1, 0, 1000 * number, extents, Tier.DRAM, SUMS)


def places(chunk: list[Read]) -> list[tuple[int, int]]:
    return [(read.piece.slot, extent) for read in chunk for extent in read.extents]


def test_chunks_are_layer_major_and_bounded() -> None:
    plan = FillPlan([piece(number) for number in range(3)])
    chunks = []
    while chunk := plan.next_chunk(16):  # two layers of 8 bytes
        chunks.append(places(chunk))
    assert chunks == [
        [(0, 0), (1, 0)],
        [(2, 0)],
        [(0, 1), (1, 1)],
        [(2, 1)],
        [(0, 2), (1, 2)],
        [(2, 2)],
    ]


def test_after_the_first_layer_slices_are_as_large_as_fits() -> None:
    plan = FillPlan([piece(0), piece(1, extents=2)])
    assert places(plan.next_chunk(100)) == [(0, 0), (1, 0)]
    chunk = plan.next_chunk(100)
    assert places(chunk) == [(0, 1), (0, 2), (1, 1)]
    assert [(read.local.nbytes, read.offset) for read in chunk] == [(18, 10), (8, 1010)]
    plan.pieces[1].remote = remote(1, 3)
    assert places(plan.next_chunk(100)) == [(1, 2)]
    assert plan.next_chunk(100) == []


def test_shards_of_later_layers_come_when_their_layers_do() -> None:
    late = piece(1)
    late.shard = Shard(0, (3, 6), (0, 1))
    plan = FillPlan([late, piece(0)])
    first = [places(plan.next_chunk(8)) for _ in range(4)]
    assert first == [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)]]


def test_a_layer_that_is_not_there_yet_is_waited_for() -> None:
    plan = FillPlan([piece(0, extents=1), piece(1, extents=0)])
    assert places(plan.next_chunk(100)) == [(0, 0)]
    assert plan.next_chunk(100) == []
    assert [waiting.slot for waiting in plan.waiting()] == [0, 1]
    assert not plan.is_over
    plan.pieces[1].remote = remote(1, 2)
    assert places(plan.next_chunk(100)) == [(1, 0)]


def came(read: Read, bad: set[tuple[int, int]], rng: random.Random) -> list[int] | None:
    """Nothing, or other bytes, where one of its layers is bad."""
    is_bad = [place in bad for place in places([read])]
    if any(is_bad) and rng.random() < 0.5:
        return None
    return [
        99 if bad_one else SUMS[extent]
        for bad_one, extent in zip(is_bad, read.extents, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_r09_exactly_what_failed_ends_and_never_while_it_is_read(seed: int) -> None:
    rng = random.Random(seed)
    plan = FillPlan([piece(number) for number in range(5)])
    bad = {
        (number, rng.randrange(NUM_LAYERS)) for number in rng.sample(range(5), rng.randint(0, 3))
    }
    window: deque[list[Read]] = deque()
    whole: list[int] = []
    ended: list[int] = []
    layers: dict[int, list[int]] = {number: [] for number in range(5)}
    while not plan.is_over:
        chunk = plan.next_chunk(rng.choice((8, 16, 40, 100))) if len(window) < 4 else []
        if chunk and rng.random() < 0.7:
            window.append(chunk)
            continue
        if chunk:
            window.append(chunk)
        chunk = window.popleft()
        sums = [came(read, bad, rng) for read in chunk]
        settled = plan.settle(chunk, sums)
        for slot, _, first, checksums in settled.advanced:
            extents = range(first, first + len(checksums))
            assert checksums == [SUMS[extent] for extent in extents]
            layers[slot] += extents
        whole += [each.slot for each in settled.whole]
        ended += [each.slot for each in settled.ended]
        in_flight = {read.piece.slot for chunk in window for read in chunk}
        assert not in_flight & set(ended)
        assert all(bad.intersection(places([read])) for read in settled.damaged)
    failed = {number for number, _ in bad}
    assert sorted(ended) == sorted(failed)
    assert sorted(whole) == sorted(set(range(5)) - failed)
    assert all(layers[number] == list(range(NUM_LAYERS)) for number in whole)


def test_what_is_given_up_ends_once_and_after_its_reads() -> None:
    plan = FillPlan([piece(0), piece(1, extents=0)])
    chunk = plan.next_chunk(100)
    plan.give_up(plan.pieces)
    plan.give_up(plan.pieces)
    assert [each.slot for each in plan.take_given_up()] == [1]
    assert plan.take_given_up() == []
    assert not plan.is_over
    settled = plan.settle(chunk, [[SUMS[0]]])
    assert [each.slot for each in settled.ended] == [0]
    assert plan.is_over


def test_what_its_producer_did_not_sum_is_summed_as_it_comes() -> None:
    unsummed = piece(0)
    unsummed.remote = remote(0, NUM_LAYERS)._replace(checksums=array("Q", [11, 0, 13]))
    plan = FillPlan([unsummed])
    settled = [plan.settle(plan.next_chunk(8), [[found]]) for found in (11, 77, 99)]
    told = [(run.first, run.checksums) for each in settled for run in each.advanced]
    assert told == [(0, [11]), (1, [77])]
    assert [read.extents for each in settled for read in each.damaged] == [range(2, 3)]
