"""One suite for every eviction policy; a new one is in POLICIES and so in here."""

from __future__ import annotations

import random
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.store import PoolSettings
from moontide.kvstore.store.eviction import POLICIES, EvictionName
from moontide.kvstore.store.slot_table import NO_SLOT

from ..kvstore.store.policy_rig import PROTECTED_RATIO, SLOTS, Rig, hit

NAMES: list[EvictionName] = list(POLICIES)
RECENCY: list[EvictionName] = ["lru", "slru", "cost_aware"]


@pytest.fixture(params=NAMES)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


@pytest.fixture(params=RECENCY)
def recency_rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


def test_settings_know_every_policy_and_no_other() -> None:
    assert set(get_args(EvictionName)) == set(POLICIES)
    for name in NAMES:
        PoolSettings(dram_bytes=4096, segment_bytes=4096, max_entries=1, eviction=name)
    with pytest.raises(InvalidRequest, match=r"'mru'; known: slru, .*cost_aware"):
        PoolSettings(
            dram_bytes=4096,
            segment_bytes=4096,
            max_entries=1,
            eviction="mru",  # type: ignore[arg-type]  # what the check is for
        )


def test_a_policy_without_entries_has_no_victim(rig: Rig) -> None:
    assert (rig.policy.coldest(), list(rig.policy)) == (NO_SLOT, [])
    rig.check()


def test_entries_that_nothing_tells_apart_go_oldest_first(rig: Rig) -> None:
    rig.insert(5, 3, 9, 1)
    assert list(rig.policy) == [5, 3, 9, 1]
    assert rig.drain() == [5, 3, 9, 1]


def test_many_inserted_at_once_stand_as_if_one_by_one(rig: Rig) -> None:
    rig.insert(7)
    for parent, slot in ((2, 4), (4, 6)):
        rig.chains.link(slot, parent)
    rig.policy.insert_many(np.array([6, 4, 2, 1], np.int64))
    rig.policy.insert_many(np.array([], np.int64))
    rig.check()
    single = Rig(next(name for name in NAMES if type(Rig(name).policy) is type(rig.policy)))
    single.insert(7)
    single.insert_chain([2, 4, 6])
    single.insert(1)
    assert list(rig.policy) == list(single.policy)
    assert rig.drain() == single.drain()


def test_soft_pinned_entries_go_last_however_often_others_were_hit(rig: Rig) -> None:
    rig.policy.insert_soft(1)
    rig.insert(2, 3)
    rig.policy.insert_soft(4)
    for _ in range(3):
        rig.policy.touch(2)
        rig.policy.touch(3)
    assert list(rig.policy)[2:] == [1, 4]
    assert sorted(rig.drain()[:2]) == [2, 3]


def test_a_soft_pin_survives_hits(rig: Rig) -> None:
    rig.policy.insert_soft(1)
    rig.policy.touch(1)
    rig.insert(2)
    assert rig.drain() == [2, 1]


def test_what_is_pinned_is_no_victim_and_hits_do_not_bring_it_back(rig: Rig) -> None:
    rig.insert(1, 2, 3)
    rig.policy.remove(2)
    rig.policy.touch(2)
    rig.policy.refresh(2)
    rig.policy.remove(2)
    assert sorted(rig.policy) == [1, 3]
    rig.policy.insert_used(2)
    assert sorted(rig.drain()) == [1, 2, 3]
    rig.check()


def test_cleared_policies_begin_anew(rig: Rig) -> None:
    rig.insert(*range(1, 20))
    rig.policy.insert_soft(20)
    rig.policy.coldest()
    rig.policy.clear()
    for column in rig.links.columns():
        np.frombuffer(column, f"u{column.itemsize}")[:] = 0
    assert (rig.policy.coldest(), list(rig.policy)) == (NO_SLOT, [])
    rig.insert(3, 4)
    assert rig.drain() == [3, 4]
    rig.check()


def test_worth_is_least_for_victims_and_most_for_soft_pins(rig: Rig) -> None:
    rig.insert(*range(1, 10))
    rig.policy.insert_soft(10)
    worth = rig.policy.worth(np.arange(1, 11))
    assert (worth > 0).all()
    assert int(np.argmin(worth)) == 0, "the oldest of equals"
    assert int(np.argmax(worth)) == 9
    assert worth[9] > worth[:9].sum()


def test_a_chain_is_never_cut_in_the_middle(recency_rig: Rig) -> None:
    chain = [10, 11, 12, 13, 14]
    recency_rig.insert_chain(chain)
    recency_rig.insert(1, 2)
    for slot in reversed(chain[:3]):
        recency_rig.policy.touch(slot)
    order = [slot for slot in recency_rig.drain() if slot in chain]
    assert order == chain[::-1]


def test_what_chains_hang_on_stays_as_long_as_they(recency_rig: Rig) -> None:
    recency_rig.insert_chain([1, 2])
    recency_rig.insert(*range(20, 30))
    recency_rig.chains.link(3, 2)
    recency_rig.insert(3)
    for slot in (2, 1):
        recency_rig.policy.refresh(slot)
    assert recency_rig.drain()[-2:] == [2, 1]


@pytest.mark.parametrize("name", NAMES)
def test_work_is_bounded_by_what_was_done_before(name: EvictionName) -> None:
    """A victim costs no search over what stays: columns are read a few times a call."""
    reads = 0

    class Counting(type(Rig(name).links.queue)):  # type: ignore[misc]  # array's own class
        def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as array has it
            nonlocal reads
            reads += 1
            return super().__getitem__(index)

    rig = Rig(name)
    for column in ("queue", "hotter", "colder", "marks", "stamp"):
        setattr(
            rig.links,
            column,
            Counting(getattr(rig.links, column).typecode, getattr(rig.links, column).tobytes()),
        )
    rig.policy = POLICIES[name](rig.links, PROTECTED_RATIO)
    rig.policy.capacity_bytes = SLOTS
    rig.insert(*range(1, SLOTS + 1))
    rng = random.Random(7)
    reads, calls = 0, 0
    for _ in range(500):
        hit(rig, rng.sample(range(1, SLOTS + 1), 3))
        rig.insert(rig.evict())
        calls += 5
    assert reads / calls < 25
    rig.check()


ACTIONS = ("insert", "soft", "touch", "refresh", "pin", "unpin", "evict")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, SLOTS)), max_size=120))
def test_policies_hold_what_they_were_given(
    name: EvictionName, steps: list[tuple[str, int]]
) -> None:
    rig = Rig(name, capacity=SLOTS // 2)
    present: set[int] = set()
    soft: set[int] = set()
    pinned: set[int] = set()
    for action, slot in steps:
        if action in ("insert", "soft") and slot not in present | pinned:
            (rig.policy.insert if action == "insert" else rig.policy.insert_soft)(slot)
            present.add(slot)
            if action == "soft":
                soft.add(slot)
        elif action == "touch":
            rig.policy.touch(slot)
        elif action == "refresh":
            rig.policy.refresh(slot)
        elif action == "pin":
            rig.policy.remove(slot)
            pinned |= present & {slot}
            present.discard(slot)
        elif action == "unpin" and slot in pinned:
            (rig.policy.insert_soft if slot in soft else rig.policy.insert_used)(slot)
            pinned.discard(slot)
            present.add(slot)
        elif action == "evict":
            victim = rig.policy.coldest()
            assert (victim == NO_SLOT) == (not present)
            if victim != NO_SLOT:
                assert victim in present
                assert victim not in soft or present <= soft, "a soft pin went before others"
                assert next(iter(rig.policy)) == victim
                rig.evict()
                present.discard(victim)
                soft.discard(victim)
        assert set(rig.policy) == present
        rig.check()
    assert set(rig.drain()) == present
