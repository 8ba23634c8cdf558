"""One suite of layer streams for every transport: what came is kept and verified, what did not
ends, and our memory is let go of first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moontide.kvstore import BlockKey
from moontide.kvstore.daemon.peers import filling
from moontide.kvstore.daemon.peers.filling import LOOK_SECONDS, FillCounters
from moontide.kvstore.daemon.peers.plan import FillPlan
from moontide.transfer import Limits
from moontide.transfer.types import Instance

from ..faulty_transport import Faults
from .stream_worlds import (
    KEYS,
    NUM_LAYERS,
    PIN_SECONDS,
    StreamWorld,
    Writer,
    entry_of,
)
from .transport_rigs import TRANSPORTS

OTHER_KEYS = [BlockKey(bytes([number]) * 16) for number in range(11, 14)]
NUM_READS = len(KEYS) * 2
"""The first layers, and then all others of a block at once."""


@pytest.fixture(params=TRANSPORTS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamWorld]:
    with ExitStack() as stack:
        world = StreamWorld.of(TRANSPORTS[request.param](stack, tmp_path, Limits()))
        yield world
        world.ours.close()


def test_every_layer_comes_verified_and_the_blocks_with_the_last(world: StreamWorld) -> None:
    assert world.run(FillPlan(world.pieces())) == FillCounters(filled_entries=5)
    world.check()


def test_blocks_of_several_requests_share_a_stream_and_streams_a_transport(
    world: StreamWorld,
) -> None:
    first, second = world.pieces(KEYS[:3]), world.pieces(OTHER_KEYS)
    shared, other = FillPlan([*first, *second]), FillPlan(world.pieces(KEYS[3:]))
    assert world.run(shared, other) == FillCounters(filled_entries=8)
    world.check(keys=[*KEYS, *OTHER_KEYS])


def test_each_layer_can_be_read_before_the_next_is_written(world: StreamWorld) -> None:
    pieces = world.pieces(extents=0)
    read: list[int] = []

    def look(extents: int) -> None:
        assert all(world.is_here(piece, layer) for piece in pieces for layer in range(extents))
        for piece in pieces:
            words = []
            for layer in range(extents):
                world.ours.watch_extent(piece.slot, piece.generation, layer, words.append)
            assert words == [True] * extents
        read.append(extents)

    assert world.run(FillPlan(pieces), source=Writer(look)) == FillCounters(filled_entries=5)
    assert read == [0, 1, 2, 3]
    world.check()


def test_a_layer_is_told_once_for_all_blocks_and_in_order(world: StreamWorld) -> None:
    pieces = world.pieces()
    came: list[tuple[int, BlockKey]] = []
    for piece in pieces:
        for layer in range(NUM_LAYERS):
            note = (layer, BlockKey(piece.key))
            world.ours.watch_extent(
                piece.slot, piece.generation, layer, lambda _, note=note: came.append(note)
            )
    world.run(FillPlan(pieces))
    assert came == [(layer, key) for layer in range(NUM_LAYERS) for key in KEYS]


def test_nothing_is_asked_for_behind_the_first_layer_before_it_has_come(
    world: StreamWorld,
) -> None:
    asked: list[int] = []

    def submitted(number: int) -> bool:
        asked.append(number)
        return False

    world.faults = Faults(refuse=submitted)
    world.rig.hold()
    world.run(FillPlan(world.pieces()), seconds=0.1)
    assert asked == [0]
    world.rig.resume()
    world.check(KEYS)


def test_r52_what_stands_still_ends_only_with_a_peer_that_fell_silent(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked over the link here: that it is not up says nothing of the peer."""
    monkeypatch.setattr(filling, "STALLED_SECONDS", 0.0)
    reading = world.reading()
    world.rig.hold()

    async def stand_still() -> None:
        await reading.wait()
        asyncio.get_running_loop().call_later(2 * LOOK_SECONDS, world.rig.resume)

    counted = world.run(FillPlan(world.pieces()), meanwhile=stand_still())
    assert counted == FillCounters(filled_entries=5)
    world.check()


@pytest.mark.parametrize("number", [0, 3, 5, NUM_READS - 1])
def test_r09_r10_a_layer_that_fails_costs_its_block_and_no_other(
    world: StreamWorld, number: int
) -> None:
    world.faults = Faults(fail=lambda n: n == number)
    counted = world.run(FillPlan(world.pieces()))
    assert counted == FillCounters(filled_entries=4, failed_entries=1)
    world.check([KEYS[number % 5]])


@pytest.mark.parametrize("number", [2, NUM_READS - 1])
def test_r10_bytes_that_do_not_match_are_never_handed_out(world: StreamWorld, number: int) -> None:
    world.faults = Faults(corrupt=lambda n: n == number)
    counted = world.run(FillPlan(world.pieces()))
    assert counted == FillCounters(filled_entries=4, failed_entries=1, corrupt_extents=1)
    world.check([KEYS[number % 5]])


def test_r10_a_layer_is_verified_against_what_its_writer_summed(world: StreamWorld) -> None:
    pieces = world.pieces()
    honest = entry_of(KEYS[2])
    pieces[2].remote = honest._replace(checksums=[*honest.checksums[:3], honest.checksums[0]])
    counted = world.run(FillPlan(pieces))
    assert counted == FillCounters(filled_entries=4, failed_entries=1, corrupt_extents=1)
    world.check([KEYS[2]])


def test_a_busy_transport_fails_its_stream_and_leaves_nothing(world: StreamWorld) -> None:
    world.faults = Faults(refuse=lambda n: n == 0)
    assert world.run(FillPlan(world.pieces())).filled_entries == 0
    world.check(KEYS)


def test_r18_a_peer_that_is_gone_costs_what_it_had_not_sent(world: StreamWorld) -> None:
    pieces = world.pieces(extents=0)

    def lose(extents: int) -> None:
        if extents == 2:
            world.rig.lose()

    counted = world.run(FillPlan(pieces), source=Writer(lose))
    assert counted == FillCounters(failed_entries=5)
    world.check(KEYS)


def test_r10_at_the_deadline_reservations_end_after_their_reads(world: StreamWorld) -> None:
    world.rig.hold()
    counted = world.run(FillPlan(world.pieces()), seconds=0.1)
    assert counted == FillCounters(failed_entries=5)
    world.check(KEYS)
    world.rig.resume()


@pytest.mark.parametrize("end", ["released", "expired"])
def test_r17_r18_r51_a_stream_ends_with_the_last_who_wants_it(world: StreamWorld, end: str) -> None:
    """Its reader lets go, or dies, and its ticket ends: nothing is waited for, nothing is kept. The
    transport is held all the while."""
    pieces = world.pieces(extents=1)
    ticket = world.hold()

    async def first_layer_then_end() -> None:
        assert all([await world.arrival(piece, 0) for piece in pieces])
        assert all(world.is_here(piece, 0) for piece in pieces)
        if end == "released":
            world.release(ticket)
        else:
            world.ours.expire(time.monotonic() + PIN_SECONDS + 1)
        assert not any([await world.arrival(piece, 1) for piece in pieces])

    source = Writer(lambda extents: world.rig.hold())
    counted = world.run(FillPlan(pieces), source=source, meanwhile=first_layer_then_end())
    assert counted == FillCounters(dropped_entries=5)
    world.check(KEYS)
    world.rig.resume()


def test_r51_of_a_prefix_that_is_narrowed_the_first_blocks_come(world: StreamWorld) -> None:
    pieces = world.pieces()
    everything, first = world.hold(), world.hold(KEYS[:2])
    world.rig.hold()
    reading = world.reading()

    async def narrow() -> None:
        await reading.wait()
        world.release(everything)
        asyncio.get_running_loop().call_later(2 * LOOK_SECONDS, world.rig.resume)

    counted = world.run(FillPlan(pieces), meanwhile=narrow())
    assert counted == FillCounters(filled_entries=2, dropped_entries=3)
    world.release(first)
    world.check(KEYS[2:])


def test_r10_memory_of_what_was_dropped_is_written_no_more(world: StreamWorld) -> None:
    """It has its next use while the peer has yet to answer."""
    world.rig.hold()
    pieces, ticket = world.pieces(), world.hold()
    reading = world.reading()

    async def drop() -> None:
        await reading.wait()
        world.release(ticket)

    assert world.run(FillPlan(pieces), meanwhile=drop()) == FillCounters(dropped_entries=5)
    for piece in pieces:
        piece.memory[:] = b"b" * len(piece.memory)
    world.rig.resume()
    world.read_anything()  # once this has come, all asked before it has ended
    assert all(bytes(piece.memory) == b"b" * len(piece.memory) for piece in pieces)
    world.check(KEYS)


def test_r25_a_former_life_of_the_peer_is_not_read_from(world: StreamWorld) -> None:
    world.instance = str(Instance.new("theirs"))
    assert world.run(FillPlan(world.pieces())) == FillCounters(failed_entries=5)
    world.check(KEYS)
