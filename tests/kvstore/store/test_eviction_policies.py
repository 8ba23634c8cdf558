"""The order of each eviction policy. What all promise: tests/conformance."""

from __future__ import annotations

import random

import numpy as np
import pytest

from moontide.kvstore.store.eviction import EvictionName

from .policy_rig import SLOTS, Rig, hit


def test_lru_orders_by_last_use_alone() -> None:
    rig = Rig("lru")
    rig.insert(1, 2, 3, 4)
    hit(rig, (1, 3))
    assert rig.drain() == [2, 4, 1, 3]


def test_slru_keeps_what_was_hit_within_its_share() -> None:
    rig = Rig("slru", capacity=10)
    rig.insert(*range(1, 7))
    hit(rig, (1, 2, 3))
    # Two of ten bytes are protected: 2 and 3; 1 fell out and is probation's newest.
    assert list(rig.policy) == [4, 5, 6, 1, 2, 3]


@pytest.mark.parametrize("name", ["slru", "cost_aware"])
def test_protected_entries_that_nobody_hits_any_more_go_in_the_end(name: EvictionName) -> None:
    """As long as nothing else is hit twice, they used to stay for ever."""
    rig = Rig(name)
    rig.insert(*range(1, 31))
    hit(rig, range(1, 11))
    num_victims = 0
    while (victim := rig.evict()) > 10 and num_victims < 2000:
        rig.insert(victim)
        num_victims += 1
    assert 15 * 20 < num_victims < 2000, "patient, not without end"
    rig.check()


def test_fifo_does_not_mind_hits() -> None:
    rig = Rig("fifo")
    rig.insert(1, 2, 3)
    hit(rig, (1, 1, 2))
    assert rig.drain() == [1, 2, 3]


def test_lfu_evicts_the_rarest_even_if_pinned_between() -> None:
    rig = Rig("lfu")
    rig.insert(1, 2, 3)
    hit(rig, (1, 1, 3))
    rig.policy.remove(1)
    rig.policy.insert_used(1)
    rig.insert(4)
    assert rig.drain() == [2, 4, 3, 1]


def test_sieve_spares_what_was_hit_since_the_hand_came_by() -> None:
    rig = Rig("sieve")
    rig.insert(1, 2, 3, 4)
    hit(rig, (1, 3))
    assert rig.evict() == 2
    rig.insert(5)
    assert list(rig.policy) == [4, 5, 1, 3]
    assert rig.drain() == [4, 5, 1, 3]


def test_length_aware_evicts_the_ends_of_long_chains_first() -> None:
    rig = Rig("length_aware")
    rig.insert_chain([1, 2, 3, 4, 5, 6, 7, 8, 9])
    rig.insert_chain([20, 21])
    hit(rig, (9,))
    order = rig.drain()
    assert order[:4] == [8, 7, 6, 5]  # 9 is as deep, but was used
    assert order[-1] == 9
    assert order.index(21) < order.index(20)


def _ends_and_others(rig: Rig, rng: random.Random, *, ends_return: bool) -> tuple[int, int]:
    """Chains of four come in and two of three are asked for again, with or without their last
    block, a little later. Then one more stays alone: places of its end and of its root in the
    order of eviction."""
    free = list(range(SLOTS, 0, -1))
    asked: list[list[int]] = []
    alive: set[int] = set()

    def add() -> list[int]:
        while len(free) < 4:
            victim = rig.evict()
            alive.discard(victim)
            free.append(victim)
        slots = [free.pop() for _ in range(4)]
        alive.update(slots)
        rig.insert_chain(slots)
        return slots

    for _ in range(3000):
        slots = add()
        if rng.random() < 0.66:
            asked.append(slots)
        if len(asked) > 3:
            back = asked.pop(0)
            hit(rig, (s for s in reversed(back if ends_return else back[:3]) if s in alive))
    older = add()
    newest = add()
    order = list(rig.policy)
    return order.index(newest[3]), order.index(older[0])


def test_cost_aware_learns_that_ends_do_not_come_back() -> None:
    end, root = _ends_and_others(Rig("cost_aware"), random.Random(1), ends_return=False)
    assert end < root


def test_cost_aware_is_slru_where_ends_come_back_like_all_others() -> None:
    end, root = _ends_and_others(Rig("cost_aware"), random.Random(1), ends_return=True)
    assert end > root


def test_cost_aware_prefers_what_costs_more_to_compute_again() -> None:
    rig = Rig("cost_aware")
    worth_of_root, worth_of_deep = 1, 2
    rig.chains.depth[worth_of_deep] = 10_000
    rig.insert(worth_of_deep, worth_of_root)
    worth = rig.policy.worth(np.array([worth_of_root, worth_of_deep]))
    assert worth[1] > 2 * worth[0]
