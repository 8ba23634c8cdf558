"""Which segments a client may write, and how they come back."""

from __future__ import annotations

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.store import FILL_OWNER, Origin, Revocation
from moontide.kvstore.types import PutStatus, ReserveStatus, Tier
from moontide.transfer.types import Instance

from .conftest import SEGMENT_BYTES, MakeNode, Node

HALF = SEGMENT_BYTES // 2
A, B = Instance("a", 1, bytes(16)), Instance("b", 2, bytes(16))


def segments_of(node: Node, owner: int, count: int, name: str) -> set[int]:
    """Puts `count` halves of a segment through shared memory; the segments that were writable."""
    segments = set()
    for index in range(count):
        reserved = node.reserve(owner, f"{name}{index}", HALF, shared_memory=True)
        assert reserved.status is ReserveStatus.RESERVED
        if reserved.writable:
            segments.add(reserved.segment)
        node.commit(owner, reserved, bytes(HALF))
    return segments


def test_client_writes_only_segments_granted_to_it(node: Node) -> None:
    first, second = node.connect(A), node.connect(B)
    one = node.reserve(first, "a", 100, shared_memory=True)
    two = node.reserve(second, "b", 100, shared_memory=True)
    plain = node.reserve(first, "c", 100)
    assert len({one.segment, two.segment, plain.segment}) == 3
    assert (one.writable, two.writable, plain.writable) == (True, True, False)
    assert node.store.writable_descriptor(one.segment, A) > 0
    for segment, client in ((one.segment, B), (two.segment, A), (plain.segment, A)):
        with pytest.raises(InvalidRequest, match="not granted"):
            node.store.writable_descriptor(segment, client)
    with pytest.raises(InvalidRequest, match="there are 8"):
        node.store.readable_descriptor(8)


def test_connections_of_one_client_share_its_grants(node: Node) -> None:
    first, second = node.connect(A), node.connect(A)
    one = node.reserve(first, "a", 100, shared_memory=True)
    assert node.reserve(second, "b", 100, shared_memory=True).segment == one.segment
    node.store.disconnect(first)
    assert node.store.writable_descriptor(one.segment, A) > 0


def test_one_segment_is_kept_for_puts_through_the_socket(node: Node) -> None:
    owner = node.connect(A)
    assert len(segments_of(node, owner, 40, "a")) == 7
    assert node.put(owner, "socket", bytes(SEGMENT_BYTES)) is ReserveStatus.RESERVED
    assert node.store.stats(node.now).segments_granted == 7


def test_nothing_goes_while_the_segment_that_is_kept_is_free(node: Node) -> None:
    owner = node.connect(A)
    segments_of(node, owner, 16, "a")
    assert all(node.has(*(f"a{index}" for index in range(16))))
    for index in range(16):
        assert node.put(owner, f"s{index}", bytes(HALF)) is ReserveStatus.RESERVED


def test_first_entry_of_a_pool_too_small_for_grants_goes_through_the_socket(
    make_node: MakeNode,
) -> None:
    node = make_node(dram_bytes=SEGMENT_BYTES)
    reserved = node.reserve(node.connect(A), "a", 100, shared_memory=True)
    assert (reserved.status, reserved.writable) == (ReserveStatus.RESERVED, False)


def test_client_without_a_grant_sends_its_bytes(node: Node) -> None:
    """Where every segment is another's, space comes from the daemon's, to be filled by Write."""
    first, second = node.connect(A), node.connect(B)
    segments_of(node, first, 14, "a")
    reserved = node.reserve(second, "b", 100, shared_memory=True)
    assert (reserved.status, reserved.writable) == (ReserveStatus.RESERVED, False)
    assert node.commit(second, reserved, bytes(100)).status is PutStatus.STORED


def test_colder_client_is_asked_for_a_segment(node: Node) -> None:
    first, second = node.connect(A), node.connect(B)
    cold = segments_of(node, first, 14, "a")
    node.now += 100
    node.reserve(second, "b", 100, shared_memory=True)
    (asked,) = node.store.take_revocations(node.now)
    assert asked.client == A
    assert asked.segment in cold
    node.reserve(second, "c", 100, shared_memory=True)
    assert node.store.take_revocations(node.now) == []
    node.store.release_segment(*asked)
    with pytest.raises(InvalidRequest, match="not granted"):
        node.store.release_segment(*asked)
    spilled = node.reserve(second, "d", HALF, shared_memory=True)
    assert (spilled.writable, node.has("a0")) == (False, [True])  # the daemon had room for it
    reserved = node.reserve(second, "e", HALF, shared_memory=True)
    assert (reserved.writable, reserved.segment) == (True, asked.segment)


def test_a_fill_takes_the_place_of_what_is_coldest_of_all(node: Node) -> None:
    segments_of(node, node.connect(A), 14, "a")
    node.now += 10
    other = node.connect(B)
    for key in ("b0", "b1"):
        node.put(other, key, bytes(HALF))
    (fill,) = node.store.reserve_entry_fill(
        FILL_OWNER,
        [string_entry_id("fill")],
        [HALF],
        origin=Origin(Tier.NVME, "file"),
        now=node.now,
    )
    assert (fill.status, fill.writable) == (ReserveStatus.RESERVED, False)
    assert node.has("a0", "a1", "b0", "b1") == [False, True, True, True]
    assert node.store.take_revocations(node.now) == []


def test_hotter_client_is_left_alone(node: Node) -> None:
    first, second = node.connect(A), node.connect(B)
    segments_of(node, second, 2, "b")
    node.now += 100
    segments_of(node, first, 12, "a")
    segments_of(node, second, 2, "more")
    assert node.store.take_revocations(node.now) == []


def test_a_segment_that_lies_on_disk_whole_is_asked_for_first(node: Node) -> None:
    """Where the disk gets entries late, what goes with its segment would be lost."""
    node.store.spare_unflushed_segments()
    first, second = node.connect(A), node.connect(B)
    puts = []
    for index in range(14):
        puts.append(node.reserve(first, f"a{index}", HALF, shared_memory=True))
        node.commit(first, puts[-1], bytes(HALF))
    node.now += 100
    node.reserve(second, "b", 100, shared_memory=True)
    assert node.store.take_revocations(node.now) == []
    offered = {entry.slot for entry in node.store.unflushed_of_coldest(0.0, 100)}
    assert {put.slot for put in puts[:8]} == offered, "four segments at a time are to be copied"
    for put in puts:
        if put.segment == puts[6].segment:
            node.store.mark_flushed(put.slot, put.generation)
    node.now += 2
    node.reserve(second, "c", 100, shared_memory=True)
    assert node.store.take_revocations(node.now) == [(A, puts[6].segment)]


def test_a_segment_is_not_spared_for_ever(node: Node) -> None:
    node.store.spare_unflushed_segments()
    first, second = node.connect(A), node.connect(B)
    segments_of(node, first, 14, "a")
    node.now += 100
    node.reserve(second, "b", 100, shared_memory=True)
    assert node.store.take_revocations(node.now) == []
    node.now += 40
    node.reserve(second, "c", 100, shared_memory=True)
    assert len(node.store.take_revocations(node.now)) == 1


def test_entries_outlive_the_client_that_wrote_them(node: Node) -> None:
    owner = node.connect(A)
    (segment,) = segments_of(node, owner, 2, "a")
    node.store.client_exited(A)
    reader = node.connect(B)
    assert node.get(reader, "a0") == bytes(HALF)
    stats = node.store.stats(node.now)
    assert (stats.segments_granted, stats.segments_orphaned) == (0, 1)
    with pytest.raises(InvalidRequest, match="not granted"):
        node.store.writable_descriptor(segment, A)
    node.check_idle(entries=2)


def test_successor_takes_over_orphaned_segments_coldest_first(node: Node) -> None:
    segments_of(node, node.connect(A), 14, "a")
    node.now += 10
    reader = node.connect(B)
    node.get(reader, "a0")
    node.store.client_exited(A)
    node.now += 10
    assert len(segments_of(node, reader, 14, "b")) == 6  # and two halves in the daemon's
    assert node.has("a0", "a2", "a12") == [True, False, False]
    assert node.store.stats(node.now).segments_orphaned == 1


def test_orphaned_segment_with_a_pin_is_not_taken(node: Node) -> None:
    segments_of(node, node.connect(A), 14, "a")
    reader = node.connect(B)
    ticket = node.pin(reader, "a3")
    node.store.client_exited(A)
    node.now += 10
    segments_of(node, reader, 40, "b")
    assert node.get(reader, "a3") == bytes(HALF)
    node.store.unpin(reader, ticket)


def test_empty_segment_of_a_client_that_is_gone_is_free(node: Node) -> None:
    owner = node.connect(A)
    node.reserve(owner, "a", 100, shared_memory=True)
    node.store.client_exited(A)
    assert node.store.stats(node.now).segments_free == 8
    node.check_idle(entries=0)


def test_r10_space_of_a_vanished_writer_waits_until_it_has_surely_stopped(node: Node) -> None:
    for end in ("quiesced", "exited"):
        owner = node.connect(A)
        reserved = node.reserve(owner, end, HALF, shared_memory=True)
        node.store.disconnect(owner)
        stats = node.store.stats(node.now)
        assert (stats.quarantined, stats.in_flight) == (1, 0)
        assert stats.tiers["dram"].quarantined_bytes == HALF
        again = node.connect(A)
        other = node.reserve(again, "next", HALF, shared_memory=True)
        assert (other.segment, other.offset) != (reserved.segment, reserved.offset)
        node.store.abort(again, [other.slot], [other.generation])
        if end == "quiesced":
            node.store.client_quiesced(A)
        else:
            node.store.client_exited(A)
        assert node.store.stats(node.now).quarantined == 0
        node.check_idle(entries=0)


def test_order_of_exit_and_disconnect_does_not_matter(node: Node) -> None:
    owner = node.connect(A)
    node.reserve(owner, "a", HALF, shared_memory=True)
    node.store.client_exited(A)
    node.store.disconnect(owner)
    with pytest.raises(InvalidRequest, match="not connected"):
        node.reserve(owner, "b", 1, shared_memory=True)
    node.check_idle(entries=0)


def test_released_segment_ends_what_was_being_written_there(node: Node) -> None:
    owner = node.connect(A)
    reserved = node.reserve(owner, "a", HALF, shared_memory=True)
    node.store.release_segment(A, reserved.segment)
    (put,) = node.store.commit(owner, [reserved.slot], [reserved.generation], [1], node.now)
    assert put.status is PutStatus.FAILED
    node.check_idle(entries=0)


def test_daemon_takes_over_orphans_too(node: Node) -> None:
    segments_of(node, node.connect(A), 14, "a")
    node.store.client_exited(A)
    node.now += 10
    owner = node.connect(B)
    for index in range(16):
        assert node.put(owner, f"s{index}", bytes(HALF)) is ReserveStatus.RESERVED
    assert all(node.has(*(f"s{index}" for index in range(16))))


def test_revocation_names_client_and_segment() -> None:
    assert Revocation(A, 3) == (A, 3)


def test_nothing_new_goes_where_a_segment_was_asked_back(node: Node) -> None:
    first, second = node.connect(A), node.connect(B)
    segments_of(node, first, 14, "a")
    node.now += 100
    node.reserve(second, "b", 100, shared_memory=True)
    (asked,) = node.store.take_revocations(node.now)
    assert asked.segment not in segments_of(node, first, 12, "more")
    node.check()
    node.store.release_segment(*asked)
    assert asked.segment in segments_of(node, second, 2, "c")


def test_a_segment_is_asked_for_again_until_it_is_back(node: Node) -> None:
    first, second = node.connect(A), node.connect(B)
    segments_of(node, first, 14, "a")
    node.now += 100
    node.reserve(second, "b", 100, shared_memory=True)
    asked = node.store.take_revocations(node.now)
    assert node.store.take_revocations(node.now + 1) == []
    assert node.store.take_revocations(node.now + 3) == asked
    node.store.client_exited(A)
    assert node.store.take_revocations(node.now + 10) == []


def test_what_a_gone_client_left_free_is_used_before_anything_is_evicted(
    make_node: MakeNode,
) -> None:
    node = make_node(dram_bytes=4 * SEGMENT_BYTES)
    owner, other = node.connect(A), node.connect(B)
    granted = segments_of(node, owner, 6, "a")
    node.store.remove([string_entry_id(f"a{index}") for index in range(0, 6, 2)], node.now)
    assert len(granted) == 3
    for index in range(2):
        node.put(other, f"b{index}", bytes(HALF))
    stopped = node.reserve(owner, "stopped", HALF, shared_memory=True)
    assert stopped.segment in granted
    node.store.disconnect(owner)  # its process may still write
    early = node.reserve(other, "early", HALF)
    assert early.segment not in granted
    node.commit(other, early, bytes(HALF))

    node.store.client_exited(A)

    before = node.store.stats(node.now).tiers["dram"].evictions
    late = [node.reserve(other, f"c{index}", HALF) for index in range(3)]
    assert {each.segment for each in late} == granted
    for each in late:
        node.commit(other, each, bytes(HALF))
    assert node.store.stats(node.now).tiers["dram"].evictions == before
    assert node.has("a1", "a3", "a5") == [True] * 3
    node.check_idle(entries=8)
    node.put(other, "more", bytes(HALF))
    assert node.store.stats(node.now).tiers["dram"].evictions == before + 1
    node.check_idle(entries=8)


def test_what_a_live_client_gave_back_is_left_to_become_free(make_node: MakeNode) -> None:
    node = make_node(dram_bytes=4 * SEGMENT_BYTES)
    owner, other = node.connect(A), node.connect(B)
    granted = segments_of(node, owner, 4, "a")
    assert len(granted) == 2
    given_back = min(granted)
    node.store.release_segment(A, given_back)
    node.store.remove([string_entry_id("a0"), string_entry_id("a2")], node.now)
    assert node.store.stats(node.now).segments_orphaned == 1
    late = [node.reserve(other, f"b{index}", HALF) for index in range(4)]
    assert given_back not in {each.segment for each in late}


def test_a_copy_takes_the_place_of_the_coldest_entry_though_its_client_is_gone(node: Node) -> None:
    owner = node.connect(A)
    granted = segments_of(node, owner, 14, "a")
    node.now += 10
    for key in ("b0", "b1"):
        node.put(node.connect(B), key, bytes(HALF))
    node.store.disconnect(owner)
    node.store.client_exited(A)
    (fill,) = node.store.reserve_entry_fill(
        FILL_OWNER,
        [string_entry_id("fill")],
        [HALF],
        origin=Origin(Tier.NVME, "file"),
        now=node.now,
    )
    assert fill.status is ReserveStatus.RESERVED
    assert fill.segment in granted
    assert node.has("a0", "a1", "b0", "b1") == [False, True, True, True]
