"""What a daemon shows of its tiers stays within 5 % of what was configured (R43)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from moontide.kvstore import connect
from moontide.kvstore.slots import SLOT_BYTES

from ...store_process import StartStore, StoreProcess

MIB = 1 << 20
DRAM_BYTES, NVME_BYTES, MAX_ENTRIES = 16 * MIB, 48 * MIB, 4096
TOLERANCE = 1.05
TIMES = 6


@pytest.fixture
def daemon(store_daemon: StartStore) -> StoreProcess:
    return store_daemon(
        *("--dram", str(DRAM_BYTES), "--segment", "2MiB", "--max-entries", str(MAX_ENTRIES)),
        *("--nvme", str(NVME_BYTES), "--nvme-region", "2MiB", "--nvme-compression", "off"),
    )


def shown_bytes(daemon: StoreProcess) -> tuple[int, int, int]:
    """(shared memory, memory of its own, disk)."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    shared, own = (int(fields[name].split()[0]) * 1024 for name in ("RssShmem", "RssAnon"))
    disk = 0
    for folder, _, names in os.walk(daemon.data_dir / "nvme"):
        for name in names:
            try:
                disk += (Path(folder) / name).lstat().st_blocks * 512
            except FileNotFoundError:  # evicted meanwhile
                continue
    return shared, own, disk


@pytest.mark.parametrize("size", [1000, 64 << 10, 1 << 20])
def test_r43_tiers_keep_within_their_limits_while_six_times_as_much_is_written(
    daemon: StoreProcess, size: int
) -> None:
    rng = random.Random(size)
    most = (DRAM_BYTES + MAX_ENTRIES * SLOT_BYTES) * TOLERANCE
    _, own_before, _ = shown_bytes(daemon)
    batch = max(1, (1 << 20) // size)
    with connect(f"unix:{daemon.socket}", timeout_s=30.0) as client:
        count = min(TIMES * NVME_BYTES // size, 40_000)
        for start in range(0, count, batch):
            client.put_many([(f"{start + n}", rng.randbytes(size)) for n in range(batch)])
            shared, own, disk = shown_bytes(daemon)
            assert shared <= most
            assert disk <= NVME_BYTES * TOLERANCE
            assert own - own_before < 96 * MIB
        stats = client.stats()
    dram, nvme = stats["tiers"]["dram"], stats["tiers"]["nvme"]
    assert dram["used_bytes"] <= dram["capacity_bytes"] <= DRAM_BYTES
    assert dram["entries"] <= MAX_ENTRIES
    assert nvme["used_bytes"] <= NVME_BYTES * TOLERANCE
    assert dram["evictions"] > 0
