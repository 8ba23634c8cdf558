"""A full pool and what is not on disk yet; what a write budget keeps off the disk."""

from __future__ import annotations

import random
import time

from moontide.kvstore import StoreClient
from moontide.kvstore.types import PutStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .warm import admin_of, check_at_rest, client_of, put_all, wait_flushed

MIB = 1 << 20
DRAM_MIB = 64
DISK = ("--nvme", "512MiB", "--dram", f"{DRAM_MIB}MiB", "--nvme-compression", "off")
RETRY_SECONDS = 60.0


def big(count: int) -> dict[str, bytes]:
    return {f"burst/{index}": random.Random(index).randbytes(MIB) for index in range(count)}


def flushed_by(node: StoreProcess) -> int:
    """Entries that the disk has for sure."""
    return int(admin_of(node).stats()["tiers"]["nvme"]["flushed"])


def put_until_stored(client: StoreClient, name: str, value: bytes) -> int:
    """Repeats a put that was refused; how often it was."""
    deadline = time.monotonic() + RETRY_SECONDS
    refusals = 0
    while (status := client.put(name, value).status) is not PutStatus.STORED:
        assert status is PutStatus.FULL
        assert time.monotonic() < deadline
        refusals += 1
    return refusals


def test_burst_of_three_times_dram_loses_nothing(store_daemon: StartStore) -> None:
    """With the write rate at a fraction of any burst's, so that the pool does fill up."""
    dram_mib = 16
    node = store_daemon(
        *("--dram", f"{dram_mib}MiB", "--nvme", "512MiB", "--nvme-compression", "off"),
        *("--nvme-backlog", "refuse", "--nvme-write-rate", "16MiB"),
    )
    entries = big(3 * dram_mib)
    with client_of(node) as client:
        refusals = sum(put_until_stored(client, name, value) for name, value in entries.items())
        assert refusals
        wait_flushed(node, len(entries))  # until then, DRAM may have no room to read into
        for name, value in entries.items():
            assert client.get(name) == value, name
        dram = admin_of(node).stats()["tiers"]["dram"]
        assert dram["evictions"] > dram_mib
        assert dram["evicted_unflushed"] == 0
    check_at_rest(node)


def test_a_cache_takes_the_burst_and_counts_what_it_lost(store_daemon: StartStore) -> None:
    node = store_daemon(*DISK, "--nvme-write-daily", "8MiB")
    entries = big(2 * DRAM_MIB)
    with client_of(node) as client:
        for name, value in entries.items():
            assert client.put(name, value).status is PutStatus.STORED
        found = [client.get(name) for name in entries]
    assert all(got in (None, value) for got, value in zip(found, entries.values(), strict=True))
    wait_until(lambda: flushed_by(node) >= 4)
    stats = admin_of(node).stats()
    assert stats["tiers"]["nvme"]["entries"] <= 8
    assert stats["nvme"]["bytes_written_today"] <= 8.4 * MIB
    assert stats["nvme"]["writes_put_off"] > 0
    assert stats["tiers"]["dram"]["evicted_unflushed"] >= found.count(None) > 0
    check_at_rest(node)


def test_the_days_bytes_are_not_given_anew_by_a_restart(store_daemon: StartStore) -> None:
    node = store_daemon(*DISK, "--nvme-write-daily", "8MiB")
    for start in (0, 20):
        with client_of(node) as client:
            put_all(client, dict(list(big(40).items())[start : start + 20]))
        wait_until(lambda: admin_of(node).stats()["nvme"]["writes_put_off"] > 0)
        wait_until(lambda: flushed_by(node) >= 6)
        node.restart()
    written = admin_of(node).stats()["nvme"]
    assert 6 * MIB <= written["bytes_written_today"] <= 8.4 * MIB
    assert written["bytes_left_today"] <= 2 * MIB


def test_what_ends_by_itself_or_never_fits_the_disk_makes_room_for_others(
    store_daemon: StartStore,
) -> None:
    """Nothing waits for a copy that will not be made."""
    node = store_daemon(*DISK, "--nvme-backlog", "refuse", "--nvme-region", "2MiB")
    with client_of(node) as client:
        for index in range(2 * DRAM_MIB // 3):
            put_until_stored(client, f"large/{index}", bytes(3 * MIB))
        for name, value in big(DRAM_MIB).items():
            assert client.put(name, value, ttl_s=600.0).status is PutStatus.STORED
        put_all(client, big(8))
    wait_flushed(node, 8)
    check_at_rest(node)
