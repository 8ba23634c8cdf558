"""Segments that are served: what may be had, and when memory is let go."""

from __future__ import annotations

import pytest

from moontide.transfer import Access, SegmentRegistry
from moontide.transfer.errors import InvalidRequest, OutOfRange, ReadOnly, UnknownSegment
from moontide.transfer.types import Opcode


@pytest.fixture
def registry() -> SegmentRegistry:
    registry = SegmentRegistry()
    registry.add(0, memoryview(b"0123456789"))
    registry.add(1, memoryview(bytearray(10)), Access.LANDING)
    return registry


def test_spans_are_lent_within_the_segment(registry: SegmentRegistry) -> None:
    span = registry.borrow(Opcode.READ, 0, 3, 7)
    assert bytes(span.view) == b"3456789"
    with pytest.raises(OutOfRange, match=r"3\.\.11 of segment 0, which has 10"):
        registry.borrow(Opcode.READ, 0, 3, 8)
    with pytest.raises(UnknownSegment, match="segment 7"):
        registry.borrow(Opcode.READ, 7, 0, 1)
    with pytest.raises(ReadOnly, match="segment 0"):
        registry.borrow(Opcode.WRITE, 0, 0, 1)
    registry.borrow(Opcode.WRITE, 1, 0, 10).release()


def test_removed_memory_is_idle_with_its_last_span(registry: SegmentRegistry) -> None:
    first, second = (registry.borrow(Opcode.WRITE, 1, 0, 4) for _ in range(2))
    assert not registry.is_idle(1)
    assert not registry.remove(1)
    with pytest.raises(UnknownSegment):
        registry.borrow(Opcode.READ, 1, 0, 1)
    first.release()
    assert not registry.is_idle(1)
    second.release()
    assert registry.is_idle(1)
    assert registry.remove(1)


def test_an_index_is_used_again_while_its_old_memory_is_still_lent(
    registry: SegmentRegistry,
) -> None:
    old = registry.borrow(Opcode.READ, 0, 0, 10)
    registry.remove(0)
    registry.add(0, memoryview(b"abc"))
    new = registry.borrow(Opcode.READ, 0, 0, 3)
    new.release()
    assert not registry.is_idle(0)
    old.release()
    assert registry.is_idle(0)


def test_what_cannot_be_served_is_refused(registry: SegmentRegistry) -> None:
    with pytest.raises(InvalidRequest, match="remove it first"):
        registry.add(0, memoryview(b"x"))
    with pytest.raises(InvalidRequest, match="read-only"):
        registry.add(2, memoryview(b"x"), Access.LANDING)
    with pytest.raises(InvalidRequest, match="contiguous"):
        registry.add(2, memoryview(bytearray(10))[::2])
