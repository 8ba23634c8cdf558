"""Runs: stretches of a segment that a client reserves without a key, and how they end."""

from __future__ import annotations

import struct

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.slots import HEARTBEAT
from moontide.kvstore.store import Pieces, RunOptions
from moontide.kvstore.store.memory import WORTH_GIVING_BACK
from moontide.kvstore.store.slot_table import SLOTS_FOR_RUNS
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES

from .conftest import SEGMENT_BYTES, MakeNode, Node
from .cutting import RUN_BYTES, commit, cut, open_run, packed, row


@pytest.mark.parametrize(
    ("entries", "offsets", "sizes", "checksums"),
    [
        ([b"sa"], b"\0" * 7, b"\0" * 8, b"\0" * 8),
        ([b"sa"], b"\0" * 8, b"\0" * 16, b"\0" * 8),
        ([b"sa", b"sb"], b"\0" * 16, b"\0" * 16, b"\0" * 8),
        ([], b"\0" * 8, b"", b""),
        ([b"s"], b"\0" * 8, b"\0" * 8, b"\0" * 8),
        ([b""], b"\0" * 8, b"\0" * 8, b"\0" * 8),
        ([b"k" + bytes(30)], b"\0" * 8, b"\0" * 8, b"\0" * 8),
        ([b"s" + bytes(1025)], b"\0" * 8, b"\0" * 8, b"\0" * 8),
    ],
)
def test_pieces_that_are_none_are_refused(
    node: Node, entries: list[bytes], offsets: bytes, sizes: bytes, checksums: bytes
) -> None:
    owner = node.connect()
    run = open_run(node, owner)
    with pytest.raises(InvalidRequest):
        node.store.commit_run(
            owner,
            run.slot,
            run.generation,
            Pieces(entries, offsets, sizes, checksums),
            RunOptions(),
            node.now,
        )
    node.check()


def test_a_run_is_its_owners_alone(node: Node) -> None:
    owner, other = node.connect(), node.connect()
    run = open_run(node, owner)
    with pytest.raises(InvalidRequest, match="no such run"):
        commit(node, other, run, row(["a"], b"x"))
    with pytest.raises(InvalidRequest, match="no such run"):
        commit(node, owner, run._replace(generation=run.generation + 1), row(["a"], b"x"))
    reserved = node.reserve(owner, "b", 10)
    with pytest.raises(InvalidRequest, match="no such run"):
        commit(node, owner, reserved, row(["a"], b"x"))
    assert node.store.stats(node.now).stale_notices == 3
    assert node.store.abort(other, [run.slot], [run.generation]) == 0
    assert node.store.stats(node.now).runs == 1


def test_a_run_is_no_entry(node: Node) -> None:
    """What works on reservations of entries finds none."""
    owner = node.connect()
    run = open_run(node, owner)
    with pytest.raises(InvalidRequest):
        node.store.buffer(run.slot, run.generation)
    with pytest.raises(InvalidRequest):
        node.store.reserved_buffer(owner, run.slot, run.generation)
    with pytest.raises(InvalidRequest):
        node.store.advance(owner, [run.slot], [run.generation], 0, [1])
    (result,) = node.store.commit(owner, [run.slot], [run.generation], [1], node.now)
    assert result.status is PutStatus.FAILED
    assert node.store.purpose(owner, run.slot, run.generation) is None
    node.check()


def test_abort_frees_the_rest_and_what_was_cut_stays(node: Node) -> None:
    owner = node.connect()
    run = open_run(node, owner)
    cut(node, owner, run, row(["a"], b"x" * 1000))
    assert node.store.abort(owner, [run.slot], [run.generation]) == 1
    assert node.get(owner, "a") == b"x" * 1000
    dram = node.store.stats(node.now).tiers["dram"]
    assert (dram.used_bytes, dram.reserved_bytes) == (1024, 0)
    assert node.store.abort(owner, [run.slot], [run.generation]) == 0
    node.check()


def test_a_run_that_is_used_up_has_ended(node: Node) -> None:
    owner = node.connect()
    run = open_run(node, owner, 4096)
    cut(node, owner, run, row(["a"], b"x" * 4096))
    stats = node.store.stats(node.now)
    assert (stats.runs, stats.tiers["dram"].reserved_bytes) == (0, 0)
    with pytest.raises(InvalidRequest, match="no such run"):
        cut(node, owner, run, [])
    node.check()


def test_runs_after_a_clear_that_gave_memory_back(make_node: MakeNode) -> None:
    """Their slots are the lowest: a table cut down to nothing still has memory for all of them."""
    node = make_node(max_entries=2 * WORTH_GIVING_BACK)
    owner = node.connect()
    keys = [f"key{number}" for number in range(WORTH_GIVING_BACK)]
    fitting = RUN_BYTES // CACHE_LINE_BYTES
    for start in range(0, len(keys), fitting):
        cut(node, owner, open_run(node, owner), row(keys[start : start + fitting], b"x"))
    assert node.store.stats(node.now).runs == 0
    assert node.store.clear(None, strings_only=False) == len(keys)
    for number in range(SLOTS_FOR_RUNS):
        open_run(node, owner, PAGE_BYTES)
        assert node.store.stats(node.now).runs == number + 1
        node.check()


@pytest.mark.parametrize("num_bytes", [0, -1, SEGMENT_BYTES + 1])
def test_a_run_of_no_size_is_refused(node: Node, num_bytes: int) -> None:
    with pytest.raises(InvalidRequest, match=str(num_bytes)):
        node.store.reserve_run(node.connect(), num_bytes, node.now)


def test_r19_runs_beyond_a_clients_share_are_told_to_come_back(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=4 * SEGMENT_BYTES, max_reserved_ratio=0.25)
    owner = node.connect()
    first = open_run(node, owner, SEGMENT_BYTES // 2)
    open_run(node, owner, SEGMENT_BYTES // 2)
    refused = node.store.reserve_run(owner, 4096, node.now)
    assert refused.status is ReserveStatus.FULL
    assert "commit or abort first" in refused.reason
    assert node.store.stats(node.now).refused_puts == 0  # the client may store another way
    cut(node, owner, first, row(["a"], b"x" * 4096))
    assert node.store.reserve_run(owner, 4096, node.now).status is ReserveStatus.RESERVED
    node.check()


def test_no_run_pushes_out_anything_while_the_daemon_has_room(make_node: MakeNode) -> None:
    """What would have gone there is told to the daemon instead, which counts no refusal."""
    node = make_node(dram_bytes=4 * SEGMENT_BYTES)
    owner = node.connect()
    for number in range(3):
        cut(
            node,
            owner,
            open_run(node, owner, SEGMENT_BYTES),
            [(f"{number}", 0, SEGMENT_BYTES * b"x")],
        )
    assert node.store.reserve_run(owner, RUN_BYTES, node.now).status is ReserveStatus.FULL
    assert node.put(owner, "the daemon's", SEGMENT_BYTES * b"x") is ReserveStatus.RESERVED
    assert node.has("0", "1", "2", "the daemon's") == [True] * 4
    open_run(node, owner, RUN_BYTES)
    assert node.has("0") == [False]
    assert node.store.stats(node.now).refused_puts == 0


def test_where_no_segment_can_be_granted_there_is_no_run(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=SEGMENT_BYTES)
    owner = node.connect()
    refused = node.store.reserve_run(owner, 4096, node.now)
    assert refused.status is ReserveStatus.FULL
    assert node.put(owner, "a", b"through the socket") is ReserveStatus.RESERVED


def test_runs_of_a_vanished_client_are_quarantined(node: Node) -> None:
    owner = node.connect()
    client = node.clients[owner]
    run = open_run(node, owner)
    cut(node, owner, run, row(["a"], b"x"))
    node.store.disconnect(owner)
    node.check()
    stats = node.store.stats(node.now)
    assert (stats.runs, stats.quarantined) == (0, 1)
    assert stats.tiers["dram"].quarantined_bytes == RUN_BYTES - 64
    node.store.client_quiesced(client)
    assert node.store.stats(node.now).tiers["dram"].used_bytes == 64
    node.check()
    node.store.client_exited(client)
    node.check()


def test_a_released_segment_ends_its_runs(node: Node) -> None:
    owner = node.connect()
    client = node.clients[owner]
    run = open_run(node, owner)
    node.store.release_segment(client, run.segment)
    assert node.store.stats(node.now).runs == 0
    node.check_idle(entries=0)


def test_a_run_pushes_out_what_is_cold(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=4 * SEGMENT_BYTES)
    owner = node.connect()
    node.put(owner, "the daemon's", bytes(SEGMENT_BYTES))
    for number in range(64):
        run = open_run(node, owner, 16 << 10)
        cut(node, owner, run, row([f"{number}-{index}" for index in range(16)], b"x" * 1024))
        node.now += 1
        node.check()
    assert node.has("63-0", "63-15", "0-0") == [True, True, False]


def test_the_heartbeat_is_read_from_slot_0(node: Node) -> None:
    node.store.beat(12.3456)
    assert node.slot_table().cast("Q")[HEARTBEAT] == 12345
    node.put(node.connect(), "a", b"x")
    node.store.clear(None, strings_only=False)
    assert node.slot_table().cast("Q")[HEARTBEAT] == 12345


def test_a_run_suits_its_segment(make_node: MakeNode) -> None:
    assert make_node(dram_bytes=8 << 20, segment_bytes=4 << 20).store.run_bytes == 512 << 10
    assert make_node(dram_bytes=64 << 10, segment_bytes=16 << 10).store.run_bytes == 0
    assert make_node(dram_bytes=128 << 20, segment_bytes=128 << 20).store.run_bytes == 8 << 20


def test_an_entry_without_a_checksum_cannot_be_told_corrupt(node: Node) -> None:
    owner = node.connect()
    run = open_run(node, owner)
    pieces = Pieces([string_entry_id("a")], packed([0]), packed([100]), packed([0]))
    result = node.store.commit_run(owner, run.slot, run.generation, pieces, RunOptions(), node.now)
    (slot,), (generation,) = (
        memoryview(result.slots).cast("I"),
        memoryview(result.generations).cast("I"),
    )
    assert not node.store.report_corrupt(slot, generation)
    assert node.has("a") == [True]


def test_use_told_later_counts_as_hits(node: Node) -> None:
    owner = node.connect()
    result = cut(node, owner, open_run(node, owner), row(["a", "b", "c"], b"x"))
    slots = struct.unpack("<3I", result.slots)
    generations = struct.unpack("<3I", result.generations)
    node.store.remove([string_entry_id("b")], node.now)
    node.now += 5
    used = node.store.note_use(owner, [*slots, 1 << 20], [*generations, 1], 77, node.now)
    assert used == [string_entry_id("a"), string_entry_id("c")]
    dram = node.store.stats(node.now).tiers["dram"]
    assert (dram.hits, dram.bytes_out) == (2, 77)
    page = node.store.list_blocks(namespace=b"", key_prefix=b"", limit=9, cursor="", now=node.now)
    assert {info.idle_s for info in page.entries} == {0.0}
    node.check()


def test_what_was_located_and_has_gone_since_is_not_touched(node: Node) -> None:
    owner = node.connect()
    cut(node, owner, open_run(node, owner), row(["a", "b"], b"x"))
    names = [string_entry_id(name) for name in ("a", "b", "absent")]
    slots, generations = node.store.locate(names, node.now)
    node.store.remove(names[:1], node.now)
    node.now += 5
    node.store.note_lookup(slots, generations, node.now)
    dram = node.store.stats(node.now).tiers["dram"]
    assert (dram.hits, dram.misses, dram.bytes_out) == (1, 1, 1)
    node.store.clear(namespace=None, strings_only=False)
    node.store.note_lookup([*slots, 1 << 20], [*generations, 1], node.now)
    assert node.store.stats(node.now).tiers["dram"].hits == 1
    node.check()
