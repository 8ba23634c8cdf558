"""What a peer says is checked before anything is made of it."""

from __future__ import annotations

import random
from array import array

import pytest

from moontide.kvstore import InvalidRequest, LayoutMismatch, Shard, StoreError, Tier, wire
from moontide.kvstore.daemon.peers.offers import read_offer, read_strings

from ...client.helpers import LAYOUT, NAMESPACE

WHOLE = LAYOUT.whole()[0]


def entry(**changes: object) -> wire.BlockEntry:
    values = {"slot": 3, "generation": 1, "segment": 0, "offset": 64, "shard": 0}
    return wire.BlockEntry(**(values | {"extents": 4, "tier": "dram"} | changes))


def reply(*entries: wire.BlockEntry, num_checksums: int | None = None) -> wire.BlocksReply:
    count = 4 * len(entries) if num_checksums is None else num_checksums
    sums = array("Q", range(1, count + 1)).tobytes()
    return wire.BlocksReply([[each] for each in entries], [WHOLE.pack()], sums)


def test_entries_get_their_own_checksums() -> None:
    first, second = read_offer(reply(entry(), entry(slot=4, tier="nvme")), NAMESPACE)
    assert list(first[0].checksums) == [1, 2, 3, 4]
    assert list(second[0].checksums) == [5, 6, 7, 8]
    assert (second[0].slot, second[0].tier, second[0].shard) == (4, Tier.NVME, WHOLE)


@pytest.mark.parametrize(
    "bad",
    [
        reply(entry(shard=1)),
        reply(entry(shard=-1)),
        reply(entry(slot=-1)),
        reply(entry(generation=1 << 32)),
        reply(entry(offset=-64)),
        reply(entry(extents=5)),
        reply(entry(tier="hbm")),
        reply(entry(), num_checksums=3),
        reply(entry(), num_checksums=5),
        wire.BlocksReply([[entry()]], [WHOLE.pack()], b"abc"),
        wire.BlocksReply([[]], [WHOLE.pack()], b""),
        wire.BlocksReply([[entry(), entry(slot=4)]], [WHOLE.pack()], bytes(64)),
    ],
)
def test_what_no_store_would_say_is_refused(bad: wire.BlocksReply) -> None:
    with pytest.raises(InvalidRequest):
        read_offer(bad, NAMESPACE)


def test_string_entries_come_with_their_place_and_lifetime() -> None:
    told = wire.LookupReply([(3, 1, 2, 64, 500, 77), None], b"", [1.5, None])
    first, second = read_strings(told, 2)
    assert first is not None
    assert (first.length, first.lifetime_s, second) == (500, 1.5, None)
    assert (first.place.segment, first.place.offset, list(first.place.checksums)) == (2, 64, [77])


@pytest.mark.parametrize(
    "bad",
    [
        wire.LookupReply([]),
        wire.LookupReply([None, None]),
        wire.LookupReply([None], b"", [1.0, 2.0]),
        wire.LookupReply([(3, 1, 2, 64, 500, 77)], b"", [float("nan")]),
        wire.LookupReply([(3, 1, 2, 64, 500, 77)], b"", [-1.0]),
        wire.LookupReply([(3, 1, 2, 64, -1, 77)]),
        wire.LookupReply([(3, 1, 2, 64, 500, -1)]),
        wire.LookupReply([(3, 1, 2, 64, 500, 1 << 64)]),
        wire.LookupReply([(-1, 1, 2, 64, 500, 77)]),
        wire.LookupReply([(3, 1, -2, 64, 500, 77)]),
        wire.LookupReply([(3, 1, 2, -64, 500, 77)]),
    ],
)
def test_strings_that_no_store_would_tell_are_refused(bad: wire.LookupReply) -> None:
    with pytest.raises(InvalidRequest):
        read_strings(bad, 1)


def test_a_shard_beyond_the_layout_is_refused() -> None:
    shard = Shard(0, (0, 9), (0, 4))
    with pytest.raises(LayoutMismatch):
        read_offer(wire.BlocksReply([], [shard.pack()], b""), NAMESPACE)


def test_random_answers_raise_only_store_errors() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        told = entry(
            **{
                name: rng.choice((-1, 0, 3, 1 << 31, 1 << 40))
                for name in rng.sample(("slot", "generation", "segment", "offset", "extents"), 2)
            }
        )
        try:
            read_offer(reply(told, num_checksums=rng.randint(0, 9)), NAMESPACE)
        except StoreError:
            continue
