"""How much of a prompt a worker finds, and where."""

from __future__ import annotations

import pytest

from moontide.conductor.cluster.holdings import Holdings
from moontide.kvstore.index import PrefixMatch

from .fake_model import BLOCK_TOKENS
from .fakes import prefill_worker

WORKER = prefill_worker().record()
HERE, THERE = WORKER.store_instance, "node-2/2/00"


@pytest.mark.parametrize(
    ("hbm", "here", "there", "expected"),
    [
        (0, {}, 0, {}),
        (2, {}, 0, {"hbm": 2}),
        (2, {"dram": 2}, 0, {"hbm": 2}),  # the same blocks
        (2, {"dram": 5}, 0, {"hbm": 2, "dram": 3}),
        (0, {"dram": 3, "nvme": 2}, 5, {"dram": 3, "nvme": 2}),
        (0, {"dram": 3}, 7, {"dram": 3, "remote": 4}),
        (1, {}, 7, {"hbm": 1, "remote": 6}),
        (7, {"dram": 3}, 7, {"hbm": 7}),
    ],
)
def test_tokens_count_for_the_nearest_tier(
    hbm: int, here: dict[str, int], there: int, expected: dict[str, int]
) -> None:
    matches = {
        WORKER.instance: PrefixMatch(hbm, {"hbm": hbm}),
        HERE: PrefixMatch(sum(here.values()), here),
        THERE: PrefixMatch(there, {"nvme": there}),
        "node-2/3/another-engine": PrefixMatch(9, {"hbm": 9}),  # nobody else can read that
    }
    found = Holdings(matches, {HERE, THERE}).cached_tokens(WORKER)
    assert found == {tier: count * BLOCK_TOKENS for tier, count in expected.items()}


def test_without_a_living_store_nothing_is_remote() -> None:
    holdings = Holdings({THERE: PrefixMatch(7, {"dram": 7})}, {THERE})
    assert holdings.cached_tokens(WORKER) == {}
    assert holdings.store_of(WORKER) == ""
