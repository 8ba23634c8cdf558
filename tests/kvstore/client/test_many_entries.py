"""Very many tiny entries through a daemon and a client: what they cost, and what comes back."""

from __future__ import annotations

import pytest

from moontide.kvstore import PutStatus
from moontide.kvstore.slots import SLOT_BYTES

from ...store_process import StartStore
from .helpers import client_of, own_memory

MOST_BYTES_EACH = 300  # beyond the pool
BATCH = 1000
KEPT_BYTES = 24 << 20
"""Event ring, and heap arenas that a few survivors keep: the same for any number of entries, and
less than a tenth of what a million take with their header slots."""


@pytest.mark.parametrize(
    ("count", "rounds"), [(150_000, 1), pytest.param(1_000_000, 2, marks=pytest.mark.soak)]
)
def test_r46_tiny_entries_cost_the_daemon_little_and_are_given_back(
    store_daemon: StartStore, count: int, rounds: int
) -> None:
    limit = str(count + BATCH)  # runs count, too
    daemon = store_daemon("--dram", "128MiB", "--segment", "16MiB", "--max-entries", limit)
    with client_of(daemon) as client:
        client.put("first", b"takes what any first call does")
        client.clear()
        first = own_memory(daemon.pid)
        for _ in range(rounds):  # no more is kept after each
            before = own_memory(daemon.pid)
            for start in range(0, count, BATCH):
                values = [b"%016d" % index for index in range(start, start + BATCH)]
                results = client.put_many([*zip(values, values, strict=True)])
                assert {result.status for result in results} == {PutStatus.STORED}
            assert client.stats()["tiers"]["dram"]["entries"] == count
            assert client.get(b"%016d" % (count // 2)) == b"%016d" % (count // 2)
            grown = own_memory(daemon.pid) - before
            assert grown / count + SLOT_BYTES <= MOST_BYTES_EACH
            assert client.clear() == count
            kept = own_memory(daemon.pid) - first
            assert kept <= KEPT_BYTES, (kept, grown)
