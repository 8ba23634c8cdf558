"""Blocks and shards: a prefix ends before the first block that is not whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.errors import InvalidRequest, LayoutMismatch, OutOfSpace
from moontide.kvstore.keys import BlockKey, EntryId, Namespace
from moontide.kvstore.layout import Group, KVLayout, Shard
from moontide.kvstore.types import ReserveStatus
from moontide.transfer import checksum

from .conftest import LAYOUT, SEGMENT_BYTES, TP2, Node, entry_of, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()


@pytest.fixture
def namespace(node: Node) -> int:
    return node.store.open_namespace(namespace_named("w"))


def test_namespaces_have_one_number_each(node: Node, namespace: int) -> None:
    assert node.store.open_namespace(namespace_named("w")) == namespace
    assert node.store.open_namespace(namespace_named("x")) != namespace
    with pytest.raises(InvalidRequest, match="namespace 9 was not opened"):
        node.prefix(node.connect(), 9, [])


def test_r5_prefix_ends_before_the_first_incomplete_block(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(6)
    node.put_blocks(owner, namespace, keys, TP2)
    assert node.prefix(owner, namespace, keys, TP2) == 6
    node.store.remove([entry_of(keys[3], TP2[1])], node.now)
    assert node.prefix(owner, namespace, keys, TP2) == 3
    assert node.prefix(owner, namespace, keys) == 3
    assert node.prefix(owner, namespace, keys, TP2[:1]) == 6
    node.put_blocks(owner, namespace, keys[3:4], TP2[1:], parent=keys[2])
    assert node.prefix(owner, namespace, keys) == 6


def test_what_one_width_wrote_another_reads(node: Node, namespace: int, chain: Chain) -> None:
    owner, wide, narrow = node.connect(), chain(3, "wide"), chain(3, "narrow")
    node.put_blocks(owner, namespace, wide, [WHOLE])
    node.put_blocks(owner, namespace, narrow, TP2)
    found = node.lookup_blocks(owner, namespace, wide, TP2[1:])
    assert found.shards == [WHOLE.pack()]
    assert [len(block) for block in found.blocks] == [1, 1, 1]
    found = node.lookup_blocks(owner, namespace, narrow, [WHOLE])
    assert found.shards == [shard.pack() for shard in TP2]
    assert [len(block) for block in found.blocks] == [2, 2, 2]


def test_exact_shards_are_preferred(node: Node, namespace: int, chain: Chain) -> None:
    owner, keys = node.connect(), chain(1)
    node.put_blocks(owner, namespace, keys, [WHOLE, *TP2])
    found = node.lookup_blocks(owner, namespace, keys, TP2[:1])
    assert found.shards == [TP2[0].pack()]


def test_layer_halves_make_a_whole(node: Node, namespace: int, chain: Chain) -> None:
    owner, keys = node.connect(), chain(1)
    first, rest = Shard(0, (0, 1), (0, 2)), Shard(0, (1, 3), (0, 2))
    for shard in (first, rest):
        (reserved,) = node.reserve_blocks(owner, namespace, keys, [shard])
        data = node.store.buffer(reserved.slot, reserved.generation)
        stride = len(data) // shard.num_layers
        for layer in range(shard.num_layers):
            piece = data[layer * stride : (layer + 1) * stride]
            node.store.advance(
                owner,
                [reserved.slot],
                [reserved.generation],
                layer,
                [checksum(piece)],
            )
        assert node.prefix(owner, namespace, keys) == 0
        node.store.commit(owner, [reserved.slot], [reserved.generation], [], node.now)
    assert node.prefix(owner, namespace, keys) == 1


def test_every_group_of_a_layout_is_needed(node: Node, chain: Chain) -> None:
    layout = KVLayout(
        (
            Group("full", num_layers=1, num_kv_heads=1, head_dim=4, dtype="float32"),
            Group("window", 1, 1, 4, "float32", window_tokens=8),
        )
    )
    namespace = node.store.open_namespace(
        Namespace(weights_id="two", layout=layout, tokenizer_digest="t", block_tokens=4)
    )
    owner, keys = node.connect(), chain(2)
    coverage = layout.whole()
    for shard in coverage:
        assert node.prefix(owner, namespace, keys, coverage) == 0
        results = node.reserve_blocks(owner, namespace, keys, [shard])
        slots, generations = [r.slot for r in results], [r.generation for r in results]
        node.store.advance(owner, slots, generations, 0, [1, 2])
        node.store.commit(owner, slots, generations, [], node.now)
    assert node.prefix(owner, namespace, keys, coverage) == 2


def test_pending_blocks_are_found_only_when_asked_for(
    node: Node, namespace: int, chain: Chain
) -> None:
    writer, reader, keys = node.connect(), node.connect(), chain(2)
    reserved = node.reserve_blocks(writer, namespace, keys, [WHOLE])
    node.write_layer(writer, reserved, 0)
    assert node.prefix(reader, namespace, keys) == 0
    found = node.lookup_blocks(reader, namespace, keys, [WHOLE], pin_s=0, pending=True)
    assert [block[0].extents for block in found.blocks] == [1, 1]
    sums = memoryview(found.checksums).cast("Q").tolist()
    piece = node.store.buffer(reserved[0].slot, reserved[0].generation)
    stride = len(piece) // 3
    assert sums == [checksum(piece[:stride]), 0, 0] * 2
    view = bytes(piece)
    node.store.abort(writer, [r.slot for r in reserved], [r.generation for r in reserved])
    assert node.prefix(reader, namespace, keys, pending=True) == 0
    assert bytes(piece) == view
    assert node.store.stats(node.now).tiers["dram"].used_bytes == 2 * len(piece)
    node.store.unpin(reader, found.ticket)
    node.check_idle(entries=0)


def test_blocks_of_a_lookup_and_its_checksums_agree(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(4)
    results = node.put_blocks(owner, namespace, keys, TP2)
    found = node.lookup_blocks(owner, namespace, keys, [WHOLE], pin_s=10.0)
    entries = [entry for block in found.blocks for entry in block]
    assert [(e.slot, e.generation, e.segment, e.offset) for e in entries] == [
        (r.slot, r.generation, r.segment, r.offset) for r in results
    ]
    sums = memoryview(found.checksums).cast("Q").tolist()
    assert sums == [
        extent.checksum for r in results for extent in node.store.extents(r.slot, r.generation)
    ]
    assert node.store.stats(node.now).pins == 8


def test_r53_a_pinned_match_stays_whole_while_others_evict(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(20)
    node.put_blocks(owner, namespace, keys, [WHOLE])
    found = node.lookup_blocks(owner, namespace, keys, [WHOLE], pin_s=10.0)
    for index in range(64):
        node.put(owner, f"s{index}", bytes(20_000))
    assert node.prefix(owner, namespace, keys) == 20
    for block in found.blocks:
        node.store.buffer(block[0].slot, block[0].generation)


def test_second_writer_of_a_block_is_told_it_exists(
    node: Node, namespace: int, chain: Chain
) -> None:
    first, second, keys = node.connect(), node.connect(), chain(3)
    node.put_blocks(first, namespace, keys[:2], [WHOLE])
    results = node.put_blocks(second, namespace, keys, [WHOLE])
    assert [result.status for result in results] == [
        ReserveStatus.EXISTS,
        ReserveStatus.EXISTS,
        ReserveStatus.RESERVED,
    ]


def test_clear_of_a_namespace_leaves_the_others(node: Node, namespace: int, chain: Chain) -> None:
    owner, keys = node.connect(), chain(3)
    other = node.store.open_namespace(namespace_named("other"))
    node.put(owner, "string", b"x")
    node.put_blocks(owner, namespace, keys, [WHOLE])
    node.put_blocks(owner, other, chain(3, "o"), [WHOLE])
    assert node.store.clear(namespace_named("w").digest, strings_only=False) == 3
    assert node.prefix(owner, namespace, keys) == 0
    assert node.prefix(owner, other, chain(3, "o")) == 3
    assert node.store.clear(None, strings_only=True) == 1
    assert node.store.clear(bytes(32), strings_only=False) == 0
    assert node.store.clear(None, strings_only=False) == 3
    node.check_idle(entries=0)


BAD_BLOCKS: dict[str, tuple[dict[str, object], str]] = {
    "short key": ({"keys": [b"short"]}, "16 bytes; got 5"),
    "short parent": ({"parent": b"short"}, "16 bytes; got 5"),
    "twice": ({"keys": [b"a" * 16] * 2}, "names a block twice"),
    "own parent": ({"keys": [b"a" * 16], "parent": b"a" * 16}, "names a block twice"),
    "no shard": ({"shards": []}, "0 shards"),
    "shard twice": ({"shards": [WHOLE, WHOLE]}, "2 shards"),
    "too many": ({"keys": [b"%16d" % n for n in range(16385)]}, "at most 16384"),
}


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_bad_chains_name_what_is_wrong(node: Node, namespace: int, name: str) -> None:
    changes, message = BAD_BLOCKS[name]
    arguments: dict[str, object] = {
        "owner": node.connect(),
        "namespace": namespace,
        "keys": [b"k" * 16],
        "parent": b"",
        "shards": [WHOLE],
        "shared_memory": False,
        "now": node.now,
    }
    with pytest.raises(InvalidRequest, match=message):
        node.store.reserve_blocks(**(arguments | changes))  # type: ignore[arg-type]  # on purpose


def test_shard_outside_the_layout_is_refused(node: Node, namespace: int, chain: Chain) -> None:
    owner = node.connect()
    with pytest.raises(LayoutMismatch, match="3 layers"):
        node.prefix(owner, namespace, chain(1), [Shard(0, (0, 4), (0, 1))])


def test_prefix_of_an_unknown_chain_is_empty(node: Node, namespace: int, chain: Chain) -> None:
    found = node.lookup_blocks(node.connect(), namespace, chain(2), [WHOLE], pin_s=5.0)
    assert found == ([], [], b"", b"", [], [])
    assert node.store.exists([EntryId(b"k"), EntryId(b"")], node.now) == [False, False]


def test_a_prefix_is_no_longer_than_its_client_may_pin(
    make_node: Callable[..., Node], chain: Chain
) -> None:
    """A long prompt in a small pool hits with what fits, instead of missing for ever."""
    node, keys = make_node(max_pin_ratio=0.05), chain(40)
    namespace = node.store.open_namespace(namespace_named("w"))
    writer, reader = node.connect(), node.connect()
    node.put_blocks(writer, namespace, keys, TP2)
    block_bytes = node.store.stats(node.now).tiers["dram"].used_bytes // len(keys)
    fitting = int(0.05 * 8 * SEGMENT_BYTES) // block_bytes
    assert 1 < fitting < len(keys)
    found = node.lookup_blocks(reader, namespace, keys, TP2, pin_s=10.0)
    assert [len(block) for block in found.blocks] == [2] * fitting
    assert len(found.checksums) == 2 * fitting * 3 * 8  # shards, blocks, layers, bytes
    with pytest.raises(OutOfSpace, match="may hold"):  # not even one block more
        node.lookup_blocks(reader, namespace, keys, TP2, pin_s=10.0)
    node.store.unpin(reader, found.ticket)
    node.check_idle()
