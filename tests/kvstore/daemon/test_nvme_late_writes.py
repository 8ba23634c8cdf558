"""--nvme-writes late: the disk gets what DRAM is about to lose, and at the end everything."""

from __future__ import annotations

import signal

from ...store_process import StartStore
from ...waiting import wait_until
from .warm import admin_of, check_at_rest, client_of, put_all

KIB = 1 << 10
ENTRY_BYTES = 64 * KIB
DRAM_ENTRIES = 128
FLAGS = (
    *("--dram", "8MiB", "--segment", "1MiB", "--nvme", "64MiB", "--nvme-writes", "late"),
    *("--nvme-compression", "off"),
)


def entries(start: int, stop: int) -> dict[str, bytes]:
    return {
        f"e{index}": index.to_bytes(4, "little") * (ENTRY_BYTES // 4)
        for index in range(start, stop)
    }


def test_the_disk_gets_the_coldest_and_only_when_dram_is_full(store_daemon: StartStore) -> None:
    node = store_daemon(*FLAGS)
    with client_of(node) as client:
        put_all(client, entries(0, DRAM_ENTRIES // 4))
        put_all(client, entries(DRAM_ENTRIES // 4, DRAM_ENTRIES * 3 // 4))
        wait_until(lambda: admin_of(node).stats()["tiers"]["nvme"]["entries"] >= 12)
        assert admin_of(node).stats()["tiers"]["nvme"]["entries"] <= DRAM_ENTRIES // 6
        # One by one: a batch may take young neighbours of cold entries for its place.
        for name, value in entries(DRAM_ENTRIES, 3 * DRAM_ENTRIES).items():
            client.put(name, value)
            wait_until(lambda: admin_of(node).stats()["tiers"]["dram"]["pinned_bytes"] == 0)
        for name, value in entries(0, 8).items():
            assert client.get(name) == value, "went to disk before it left DRAM"
        assert admin_of(node).stats()["tiers"]["dram"]["evicted_unflushed"] == 0
    check_at_rest(node)


def test_what_only_dram_has_goes_to_disk_at_the_end(store_daemon: StartStore) -> None:
    node = store_daemon(*FLAGS)
    with client_of(node) as client:
        put_all(client, entries(0, 30))
        assert admin_of(node).stats()["tiers"]["nvme"]["entries"] == 0
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    node.start()
    with client_of(node) as client:
        for name, value in entries(0, 30).items():
            assert client.get(name) == value
