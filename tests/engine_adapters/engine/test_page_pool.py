"""The page pool against a model, and the promises one at a time."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moontide.engine_adapters.builtin.engine.page_pool import PagePool
from moontide.kvstore import BlockKey


def key(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


def test_allocate_is_all_or_nothing() -> None:
    pool = PagePool(4)
    assert pool.allocate(5) is None
    assert pool.num_available == 4
    assert sorted(pool.allocate(4) or []) == [0, 1, 2, 3]
    assert pool.allocate(1) is None


def test_a_released_full_page_stays_hittable_until_the_space_is_needed() -> None:
    pool = PagePool(2)
    (page,) = pool.allocate(1) or []
    pool.publish(page, key(1))
    pool.release([page])
    assert pool.match([key(1)]) == [page]
    pool.allocate(2)
    assert pool.match([key(1)]) == []


def test_a_match_ends_at_the_first_hole() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3) or []
    pool.publish(pages[0], key(1))
    pool.publish(pages[2], key(3))
    assert pool.match([key(1), key(2), key(3)]) == pages[:1]


def test_a_chain_shrinks_from_its_end() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3) or []
    for number, page in enumerate(pages):
        pool.publish(page, key(number))
    pool.release(pages)
    pool.allocate(1)
    assert pool.match([key(0), key(1), key(2)]) == pages[:2]


def test_the_second_page_with_a_block_stays_private() -> None:
    pool = PagePool(2)
    first, second = pool.allocate(2) or []
    pool.publish(first, key(1))
    pool.publish(second, key(1))
    assert pool.match([key(1)]) == [first]
    pool.release([second])
    assert pool.num_available == 1


def test_r04_a_shared_page_is_not_writable() -> None:
    pool = PagePool(1)
    (page,) = pool.allocate(1) or []
    assert pool.is_writable(page)
    pool.publish(page, key(1))
    assert not pool.is_writable(page)
    with pytest.raises(AssertionError):
        pool.publish(page, key(2))


def test_changes_are_net() -> None:
    pool = PagePool(2)
    pages = pool.allocate(2) or []
    pool.publish(pages[0], key(1))
    pool.publish(pages[1], key(2))
    pool.release(pages)
    pool.allocate(1)
    changes = pool.drain_changes()
    assert changes.stored == (key(1),)
    assert changes.removed == ()
    assert pool.clear() == 1
    assert pool.drain_changes().removed == (key(1),)


class PagePoolMachine(RuleBasedStateMachine):
    """Holders take prefixes of a few chains; the pool must never hand a held page to another."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(8)
        self.holders: list[list[int]] = []
        self.known: set[BlockKey] = set()

    @rule(chain=strategies.integers(0, 2), length=strategies.integers(1, 5))
    def admit(self, chain: int, length: int) -> None:
        keys = [key(10 * chain + block) for block in range(length)]
        shared = self.pool.match(keys)
        self.pool.acquire(shared)
        fresh = self.pool.allocate(length - len(shared))
        if fresh is None:
            self.pool.release(shared)
            return
        held = {page for pages in self.holders for page in pages}
        assert not held & set(fresh)
        for page, block in zip(fresh, keys[len(shared) :], strict=True):
            assert self.pool.is_writable(page)
            self.pool.publish(page, block)
        self.holders.append(shared + fresh)

    @precondition(lambda self: self.holders)
    @rule(data=strategies.data())
    def finish(self, data: strategies.DataObject) -> None:
        index = data.draw(strategies.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @rule()
    def clear(self) -> None:
        self.pool.clear()

    @rule()
    def drain(self) -> None:
        changes = self.pool.drain_changes()
        assert not self.known & set(changes.stored)
        assert set(changes.removed) <= self.known
        self.known = (self.known | set(changes.stored)) - set(changes.removed)
        assert self.known == set(self.pool.hittable())

    @invariant()
    def accounting_holds(self) -> None:
        self.pool.check_integrity(self.holders)


TestPagePool = PagePoolMachine.TestCase
TestPagePool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
