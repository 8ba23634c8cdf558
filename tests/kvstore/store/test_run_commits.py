"""Commits of what was cut from runs. One by one or by columns, they are the same."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.slots import EXPIRES, WORDS, SlotReader
from moontide.kvstore.store import Pieces, PoolSettings, ReserveResult, RunOptions, runs
from moontide.kvstore.store.allocator import occupied_bytes
from moontide.kvstore.types import PutStatus, ReserveStatus

from .conftest import SEGMENT_BYTES, MakeNode, Node
from .cutting import EXISTS, FULL, RUN_BYTES, STORED, Piece, cut, open_run, packed, row


@pytest.fixture(params=["one by one", "columns"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways through a commit, whatever the size of its batch."""
    monkeypatch.setattr(runs, "FEW_ENTRIES", 0 if request.param == "columns" else 1 << 20)


@pytest.mark.usefixtures("way")
class TestBothWays:
    def test_what_is_cut_is_found_and_the_rest_stays_reserved(self, node: Node) -> None:
        owner = node.connect()
        run = open_run(node, owner)
        result = cut(
            node, owner, run, [("a", 0, b"first"), ("b", 64, b""), ("c", 4096, b"c" * 5000)]
        )
        assert list(result.statuses) == [STORED] * 3
        assert [node.get(owner, key) for key in "abc"] == [b"first", b"", b"c" * 5000]
        node.check()
        dram = node.store.stats(node.now).tiers["dram"]
        assert dram.reserved_bytes == RUN_BYTES - 4096 - 8192
        assert dram.used_bytes == RUN_BYTES - (4096 - 128)  # what was skipped is free
        assert dram.bytes_in == 5005
        again = cut(node, owner, run, row(["d", "e"], b"more", 4096 + 8192))
        assert list(again.statuses) == [STORED] * 2
        node.check()

    def test_slots_and_generations_are_where_they_lie(self, node: Node) -> None:
        owner = node.connect()
        result = cut(node, owner, open_run(node, owner), row(["a", "b", "c"], b"x" * 100))
        slots = struct.unpack("<3I", result.slots)
        generations = struct.unpack("<3I", result.generations)
        located, _ = node.store.lookup(
            owner, [string_entry_id(key) for key in "abc"], None, node.now
        )
        assert [(found.slot, found.generation) for found in located if found] == list(
            zip(slots, generations, strict=True)
        )

    @pytest.mark.parametrize("if_exists", ["keep", "error"])
    def test_an_entry_that_is_there_stays(self, node: Node, if_exists: str) -> None:
        owner = node.connect()
        node.put(owner, "b", b"old")
        run = open_run(node, owner)
        result = cut(node, owner, run, row(["a", "b", "c"], b"new"), if_exists=if_exists)
        assert list(result.statuses) == [STORED, EXISTS, STORED]
        assert struct.unpack("<3I", result.slots)[1] == 0
        assert result.reason
        assert list(result.stored) == [string_entry_id("a"), string_entry_id("c")]
        assert node.get(owner, "b") == b"old"
        node.check()

    def test_what_lies_elsewhere_stays_there(self, node: Node) -> None:
        owner = node.connect()
        elsewhere = frozenset([string_entry_id("b")])
        result = cut(
            node, owner, open_run(node, owner), row(["a", "b"], b"new"), elsewhere=elsewhere
        )
        assert list(result.statuses) == [STORED, EXISTS]
        assert node.has("a", "b") == [True, False]
        node.check()

    def test_a_replaced_value_is_withdrawn_from_its_readers(self, node: Node) -> None:
        owner = node.connect()
        node.put(owner, "b", b"old")
        ticket = node.pin(owner, "b")
        (found,), _ = node.store.lookup(owner, [string_entry_id("b")], None, node.now)
        assert found is not None
        result = cut(
            node, owner, open_run(node, owner), row(["a", "b"], b"new"), if_exists="replace"
        )
        assert list(result.statuses) == [STORED] * 2
        assert node.get(owner, "b") == b"new"
        reader = SlotReader(node.slot_table())
        assert not reader.is_current(found.slot, found.generation)
        assert reader.is_intact(found.slot, found.generation)
        assert bytes(node.store.buffer(found.slot, found.generation)) == b"old"
        node.check()
        node.store.unpin(owner, ticket)
        assert not reader.is_intact(found.slot, found.generation)
        node.check()

    @pytest.mark.parametrize(
        ("if_exists", "statuses", "value"),
        [("keep", [STORED, STORED, EXISTS], b"1"), ("replace", [STORED] * 3, b"2")],
    )
    def test_a_key_named_twice(
        self, node: Node, if_exists: str, statuses: list[PutStatus], value: bytes
    ) -> None:
        owner = node.connect()
        pieces = [("a", 0, b"1"), ("b", 64, b"b"), ("a", 128, b"2")]
        result = cut(node, owner, open_run(node, owner), pieces, if_exists=if_exists)
        assert list(result.statuses) == statuses
        assert node.get(owner, "a") == value
        node.check()

    def test_times_to_live_and_soft_pins_hold(self, node: Node) -> None:
        owner = node.connect()
        run = open_run(node, owner)
        cut(node, owner, run, row(["a", "b"], b"x"), ttl_s=1.0)
        cut(node, owner, run, row(["c", "d"], b"x", 128), soft_pin=True)
        words = node.slot_table().cast("Q")
        located, _ = node.store.lookup(
            owner, [string_entry_id(key) for key in "abcd"], None, node.now
        )
        ends = [bool(words[found.slot * WORDS] & EXPIRES) for found in located if found]
        assert ends == [True, True, False, False]
        node.check()
        node.now += 2
        assert node.has("a", "b", "c", "d") == [False, False, True, True]
        node.check()

    def test_events_name_what_was_stored(self, node: Node) -> None:
        owner = node.connect()
        cut(node, owner, open_run(node, owner), row(["a", "b"], b"x"))
        events = node.store.events.since(0)
        assert events is not None
        told = [(event.kind, event.entries) for event in events]
        assert told == [("stored", (string_entry_id("a").hex(), string_entry_id("b").hex()))]

    def test_r46_entries_beyond_the_limit_evict_the_coldest(self, make_node: MakeNode) -> None:
        node = make_node(max_entries=40)
        owner = node.connect()
        names = [f"old{index}" for index in range(30)]
        for name in names:
            node.put(owner, name, b"x")
            node.now += 1
        new = [f"new{index}" for index in range(20)]
        result = cut(node, owner, open_run(node, owner), row(new, b"y"))
        assert list(result.statuses) == [STORED] * 20
        assert all(node.has(*new))
        assert node.has(*names) == [False] * 11 + [True] * 19
        node.check()

    def test_r19_without_slots_each_entry_is_told_to_come_back(self, make_node: MakeNode) -> None:
        node = make_node(max_entries=16, max_pin_ratio=1.0)
        owner = node.connect()
        for index in range(12):
            node.put(owner, f"held{index}", b"x")
            node.pin(owner, f"held{index}")
        run = open_run(node, owner)
        result = cut(node, owner, run, row([f"new{index}" for index in range(5)], b"y"))
        assert list(result.statuses) == [STORED] * 3 + [FULL] * 2
        assert "retry later" in result.reason
        assert node.store.stats(node.now).refused_puts == 2
        node.check()
        node.store.remove([string_entry_id("new0")], node.now)
        later = cut(node, owner, run, [("new3", 320, b"y")])
        assert list(later.statuses) == [STORED]
        node.check()

    @pytest.mark.parametrize(
        ("offsets", "sizes"),
        [
            ([0, 0], [64, 64]),  # one over the other
            ([64, 0], [64, 64]),  # out of order
            ([0, 64], [65, 64]),
            ([32, 64], [1, 1]),  # misaligned
            ([64, 128], [5000, 1]),
            ([0, RUN_BYTES - 64], [1, 65]),  # beyond the end
            ([0, RUN_BYTES], [1, 0]),
            ([0, 1 << 63], [1, 1]),
            ([0, 64], [1, (1 << 64) - 1]),
            ([(1 << 64) - 64, 64], [64, 1]),
        ],
    )
    def test_pieces_that_lie_wrong_change_nothing(
        self, node: Node, offsets: list[int], sizes: list[int]
    ) -> None:
        owner = node.connect()
        run = open_run(node, owner)
        before = node.store.stats(node.now)
        entries = [string_entry_id("a"), string_entry_id("b")]
        pieces = Pieces(entries, packed(offsets), packed(sizes), packed([0, 0]))
        with pytest.raises(InvalidRequest, match="offset"):
            node.store.commit_run(owner, run.slot, run.generation, pieces, RunOptions(), node.now)
        assert node.store.stats(node.now) == before
        node.check()
        assert list(cut(node, owner, run, row(["a", "b"], b"x")).statuses) == [STORED] * 2

    def test_what_was_committed_once_is_out_of_reach(self, node: Node) -> None:
        owner = node.connect()
        run = open_run(node, owner)
        cut(node, owner, run, row(["a", "b"], b"x"))
        node.store.remove([string_entry_id("a")], node.now)
        with pytest.raises(InvalidRequest, match="free in 128"):
            cut(node, owner, run, row(["c", "d"], b"x"))
        node.check()


Step = tuple[str, list[tuple[int, int]], str, int]
"""What happens; (key number, size) of pieces; if_exists; pages to skip before them."""
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "cut", "cut", "new run", "abort", "remove", "pin", "reconnect"]),
        st.lists(
            st.tuples(
                st.integers(0, 30), st.sampled_from([0, 1, 64, 65, 1000, 4095, 4096, 4097, 9000])
            ),
            max_size=12,
        ),
        st.sampled_from(["keep", "replace", "error"]),
        st.integers(0, 1),
    ),
    max_size=30,
)


class _Twin:
    """A node that takes the steps one of the two ways."""

    def __init__(self, few_entries: int) -> None:
        self.few_entries = few_entries
        self.node = Node(
            PoolSettings(
                dram_bytes=4 * SEGMENT_BYTES,
                segment_bytes=SEGMENT_BYTES,
                max_entries=1000,
                max_pin_ratio=1.0,
            )
        )
        self.owner = self.node.connect()
        self.run: ReserveResult | None = None
        self.front = 0

    def take(self, step: Step) -> Any:
        kind, wanted, if_exists, skipped = step
        node, store = self.node, self.node.store
        keys = [f"key{number}" for number, _ in wanted]
        node.now += 1
        if kind == "remove":
            return store.remove([string_entry_id(key) for key in keys], node.now)
        if kind == "pin":
            return [node.pin(self.owner, key) != b"" for key in keys[:2]]
        if kind == "reconnect":
            client = node.clients[self.owner]
            store.disconnect(self.owner)
            node.check()
            store.client_quiesced(client)
            self.owner, self.run = node.connect(client), None
        elif kind == "abort" and self.run:
            ended = store.abort(self.owner, [self.run.slot], [self.run.generation])
            self.run = None
            return ended
        elif kind == "new run" or (kind == "cut" and self.run is None):
            got = store.reserve_run(self.owner, RUN_BYTES, node.now)
            self.run = got if got.status is ReserveStatus.RESERVED else None
            self.front = 0
            return got
        elif kind == "cut" and self.run:
            return self._cut(self.run, wanted, if_exists, skipped)
        return None

    def _cut(
        self, run: ReserveResult, wanted: list[tuple[int, int]], if_exists: str, skipped: int
    ) -> Any:
        pieces: list[Piece] = []
        self.front += 4096 * skipped
        for number, size in wanted:
            alignment = 4096 if size >= 4096 else 64
            offset = -(-self.front // alignment) * alignment
            if offset + occupied_bytes(size) > RUN_BYTES:
                break
            pieces.append((f"key{number}", offset, bytes([number]) * size))
            self.front = offset + occupied_bytes(size)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs, "FEW_ENTRIES", self.few_entries)
            result = cut(self.node, self.owner, run, pieces, if_exists=if_exists)
        told = zip(pieces, result.statuses, strict=True)
        stored = {key: value for (key, _, value), status in told if status == STORED}
        assert {key: self.node.get(self.owner, key) for key in stored} == stored
        if self.front == RUN_BYTES:
            self.run = None
        return result.statuses, result.reason, list(result.stored)


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_both_ways_come_to_the_same(steps: list[Step]) -> None:
    twins = _Twin(0), _Twin(1 << 20)
    try:
        for step in steps:
            ours, theirs = (twin.take(step) for twin in twins)
            if isinstance(ours, ReserveResult):
                assert ours.status is theirs.status
            else:
                assert ours == theirs
            for twin in twins:
                twin.node.check()
            one, other = (twin.node.store.stats(twin.node.now) for twin in twins)
            assert one == other
    finally:
        for twin in twins:
            twin.node.store.close()
