"""The write budget: how fast, how much a day, and that a restart does not give it anew."""

from __future__ import annotations

import pytest

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.nvme import NvmeSettings
from moontide.kvstore.nvme.write_budget import DayCount, WriteBudget

from .conftest import OpenTier
from .rig import MIB, content, names

ENTRY_BYTES = 12 << 10


def written_by(budget: WriteBudget, *, seconds: int, entry_bytes: int) -> int:
    """A writer that asks ten times a second, and writes each time as long as it may."""
    total = 0
    for tick in range(10 * seconds):
        budget.observe(total, tick / 10)
        pending = 0
        while budget.allows(entry_bytes, pending_bytes=pending, written_today=total):
            pending += entry_bytes
        total += pending
    return total


@pytest.mark.parametrize("entry_bytes", [1000, 10_000, 300_000])
def test_a_rate_holds_over_time_for_entries_of_any_size(entry_bytes: int) -> None:
    budget = WriteBudget(bytes_per_second=100_000, bytes_per_day=None)
    total = written_by(budget, seconds=60, entry_bytes=entry_bytes)
    assert 100_000 * 59 <= total <= 100_000 * 61 + entry_bytes


def test_what_an_idle_time_left_is_kept_for_a_second_only() -> None:
    budget = WriteBudget(bytes_per_second=1000, bytes_per_day=None)
    budget.observe(0, 0.0)
    budget.observe(0, 3600.0)
    assert budget.allows(1, pending_bytes=999, written_today=0)
    assert not budget.allows(1, pending_bytes=1000, written_today=0)


def test_what_was_not_asked_for_is_made_good() -> None:
    """Entries carried over cost new ones their turn."""
    budget = WriteBudget(bytes_per_second=1000, bytes_per_day=None)
    budget.observe(0, 0.0)
    budget.observe(5000, 1.0)
    budget.observe(5000, 4.5)
    assert not budget.allows(1, pending_bytes=0, written_today=0)
    budget.observe(5000, 5.5)
    assert budget.allows(1, pending_bytes=0, written_today=0)


def test_a_day_has_its_bytes_and_no_more() -> None:
    budget = WriteBudget(bytes_per_second=None, bytes_per_day=1000)
    assert written_by(budget, seconds=2, entry_bytes=300) == 900
    assert budget.left_today(900) == 100
    assert budget.allows(100, pending_bytes=0, written_today=900)
    assert not budget.allows(101, pending_bytes=0, written_today=900)


def test_the_count_of_a_day_begins_anew_and_a_clock_set_back_does_not_renew_it() -> None:
    count = DayCount().plus(10, 20_000).plus(5, 20_000)
    assert (count.on(20_000), count.on(20_001)) == (15, 0)
    assert count.plus(1, 19_999).on(19_999) == 16
    assert count.plus(1, 20_001) == DayCount(20_001, 1)


def test_a_clock_that_was_far_ahead_does_not_use_up_the_days_until_then() -> None:
    ahead = DayCount().plus(10, 20_000).plus(5, 47_000)
    assert ahead.on(20_000) == 0
    assert ahead.plus(1, 20_000) == DayCount(20_000, 1)


def test_no_limit_allows_everything() -> None:
    budget = WriteBudget(bytes_per_second=None, bytes_per_day=None)
    budget.observe(1 << 50, 0.0)
    assert budget.allows(1 << 50, pending_bytes=1 << 50, written_today=1 << 50)
    assert budget.left_today(0) is None


def test_a_tier_counts_what_it_writes_with_what_it_carries_over(open_tier: OpenTier) -> None:
    rig = open_tier(capacity_bytes=8 * MIB, today=lambda: 7)
    hot = names(0, 40)
    rig.put_many(hot)
    start = 0
    while not rig.tier.stats().reinserted:
        rig.tier.touch(hot)
        rig.put_many(names(start, start + 50, prefix="cold"))
        start += 50
    stats = rig.tier.stats()
    assert stats.bytes_written_today == stats.bytes_written
    assert stats.bytes_written >= stats.bytes_in + stats.reinserted * ENTRY_BYTES


def test_the_daily_budget_survives_a_restart_and_ends_with_the_day(open_tier: OpenTier) -> None:
    day = [7]
    budget = {"write_daily": MIB, "today": lambda: day[0]}
    rig = open_tier(**budget)
    rig.put_many(names(0, 50))
    written = rig.tier.stats().bytes_written_today
    assert written >= 50 * ENTRY_BYTES
    rig = open_tier(**budget)
    stats = rig.tier.stats()
    assert (stats.bytes_written, stats.bytes_written_today) == (0, written)
    assert stats.bytes_left_today == MIB - written
    assert rig.tier.may_write(MIB - written)
    assert not rig.tier.may_write(MIB - written + 1)
    assert rig.tier.stats().writes_put_off == 1
    day[0] += 1
    assert rig.tier.may_write(MIB)


def test_what_is_on_its_way_counts_before_it_is_written(open_tier: OpenTier) -> None:
    rig = open_tier(write_daily=MIB)
    data = content(b"k1", extents=1, extent_bytes=MIB // 2)
    assert rig.submit(b"k1", data)
    assert not rig.tier.may_write(MIB // 2 + 1)


@pytest.mark.parametrize("name", ["write_rate", "write_daily"])
def test_a_budget_of_nothing_is_refused(tmp_path: object, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} is 0"):
        NvmeSettings(directory=tmp_path, capacity_bytes=1 << 30, **{name: 0})  # type: ignore[arg-type]  # one of two
