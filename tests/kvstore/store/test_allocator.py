"""The offset allocator against a list of live extents."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from moontide.kvstore.store.allocator import OffsetAllocator, occupied_bytes

SEGMENT = 1 << 20
SIZES = st.one_of(
    st.integers(0, 300),
    st.integers(1, 9000),
    st.integers(1, 300_000),
    st.sampled_from([64, 4096, 65536, SEGMENT]),
)


class AllocatorMachine(RuleBasedStateMachine):
    """The model is the list of live extents; free space is what lies between them."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = OffsetAllocator(SEGMENT)
        self.live: list[tuple[int, int]] = []

    @rule(num_bytes=SIZES)
    def allocate(self, num_bytes: int) -> None:
        offset = self.allocator.allocate(num_bytes)
        if offset is None:
            assert not self.has_room(num_bytes)
            return
        assert offset % (4096 if num_bytes >= 4096 else 64) == 0
        self.live.append((offset, num_bytes))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.allocator.free(*self.live.pop(index))

    @rule()
    def rebuild(self) -> None:
        """An allocator made from the live extents is as good."""
        self.allocator.keep_only(self.extents())

    def extents(self) -> list[tuple[int, int]]:
        return [(offset, occupied_bytes(size)) for offset, size in self.live]

    def has_room(self, num_bytes: int) -> bool:
        """First fit by walking. Must agree with the allocator: no fit is overlooked."""
        alignment = 4096 if num_bytes >= 4096 else 64
        reached = 0
        for offset, size in [*sorted(self.live), (SEGMENT, 0)]:
            start = -(-reached // alignment) * alignment
            if start + occupied_bytes(num_bytes) <= offset:
                return True
            reached = offset + occupied_bytes(size)
        return False

    @invariant()
    def extents_tile_the_segment(self) -> None:
        assert self.allocator.check_integrity(self.extents()) == []


def test_allocator_agrees_with_a_list_of_extents() -> None:
    run_state_machine_as_test(
        AllocatorMachine, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )


def test_everything_joins_again() -> None:
    chance = random.Random(3)
    allocator = OffsetAllocator(SEGMENT)
    live = []
    for _ in range(2000):
        size = chance.choice([10, 64, 1000, 5000])
        offset = allocator.allocate(size)
        if offset is not None:
            live.append((offset, size))
    chance.shuffle(live)
    for offset, size in live:
        allocator.free(offset, size)
    assert allocator.used_bytes == 0
    assert allocator.largest_free_bytes == SEGMENT
    assert allocator.allocate(SEGMENT) == 0
    assert allocator.allocate(1) is None


def test_holes_of_the_very_size_are_used() -> None:
    """Sizes between bin borders: a search by bin alone would pass exact holes over."""
    allocator = OffsetAllocator(SEGMENT)
    size = 4096 * 33
    offsets = [allocator.allocate(size) for _ in range(7)]
    assert None not in offsets
    assert allocator.allocate(size) is None
    for offset in offsets[::2]:
        assert offset is not None
        allocator.free(offset, size)
    assert [allocator.allocate(size) for _ in range(4)].count(None) == 0


@pytest.mark.parametrize(
    ("num_bytes", "occupied"),
    [(0, 64), (1, 64), (64, 64), (65, 128), (4095, 4096), (4096, 4096), (4097, 8192)],
)
def test_sizes_are_rounded_to_lines_and_pages(num_bytes: int, occupied: int) -> None:
    assert occupied_bytes(num_bytes) == occupied


def test_integrity_check_sees_a_lost_extent() -> None:
    allocator = OffsetAllocator(SEGMENT)
    allocator.allocate(100)
    assert allocator.check_integrity([(0, 128)]) == []
    assert allocator.check_integrity([]) != []
    assert allocator.check_integrity([(64, 128)]) != []
