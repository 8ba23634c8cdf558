"""What is copied together, and in which order."""

from __future__ import annotations

import random

from moontide.kvstore import BlockKey, Shard
from moontide.kvstore.daemon.peers.lots import MAX_LOT, Item, plan_lots
from moontide.kvstore.keys import kv_entry_id, string_entry_id

ONE, TWO = Shard(0, (0, 2), (0, 2)), Shard(0, (0, 2), (2, 4))
SPACE = b"n" * 32


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


def block(number: int, parent: int | None, *shards: Shard) -> list[Item]:
    before = b"" if parent is None else key(parent)
    return [Item(kv_entry_id(key(number), shard), SPACE, 100, before) for shard in shards or [ONE]]


def chain(start: int, length: int) -> list[Item]:
    numbers = range(start, start + length)
    return [item for n in numbers for item in block(n, n - 1 if n > start else None)]


def test_each_entry_is_in_one_lot() -> None:
    strings = [Item(string_entry_id(f"{n}"), b"", 10) for n in range(MAX_LOT + 1)]
    items = [*chain(0, 200), *strings, *chain(1000, 3), *block(5000, None, ONE, TWO)]
    random.Random(1).shuffle(items)
    lots = plan_lots(items)
    assert sorted(item for lot in lots for item in lot.items) == sorted(items)
    assert all(len(lot.items) <= 2 * MAX_LOT for lot in lots)
    assert sum(lot.num_bytes for lot in lots) == sum(item.num_bytes for item in items)


def test_a_lot_continues_where_an_earlier_one_ended() -> None:
    items = chain(0, 3 * MAX_LOT)
    random.Random(2).shuffle(items)
    lots = plan_lots(items)
    assert [lot.keys[0] for lot in lots] == [key(0), key(MAX_LOT - 1), key(2 * MAX_LOT - 1)]
    assert [len(lot.items) for lot in lots] == [MAX_LOT] * 3


def test_a_branch_names_the_block_before_it() -> None:
    items = [*chain(0, 4), *block(10, 1), *block(11, 10)]
    lots = plan_lots(items)
    assert {lot.keys for lot in lots} == {
        (key(0), key(1), key(2), key(3)),
        (key(1), key(10), key(11)),
    }
    told: set[bytes] = set()
    for lot in lots:
        new = {item.entry[1:17] for item in lot.items}
        assert set(lot.keys) - new <= told
        told |= new


def test_blocks_of_other_shards_go_apart() -> None:
    items = [*block(0, None, ONE, TWO), *block(1, 0, ONE), *block(2, 1, ONE)]
    lots = plan_lots(items)
    assert [(lot.keys, lot.shards) for lot in lots] == [
        ((key(0),), (ONE, TWO)),
        ((key(1), key(2)), (ONE,)),
    ]


def test_what_begins_in_the_middle_of_a_chain_begins_one() -> None:
    (lot,) = plan_lots(block(7, 6))
    assert lot.keys == (key(7),)
