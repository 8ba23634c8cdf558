"""How `--dram` becomes segments: nothing of what was asked for is lost to rounding."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from moontide.kvstore import PutStatus

from ...store_process import StoreProcess
from ..client.helpers import client_of


@pytest.mark.parametrize(
    ("flags", "num_segments", "capacity_bytes", "largest_bytes"),
    [
        (("--dram", "256MiB"), 4, 256 << 20, 64 << 20),
        (("--dram", "100MiB"), 1, 100 << 20, 100 << 20),
        (("--dram", "24MiB"), 1, 24 << 20, 24 << 20),
        (("--dram", "10MiB", "--segment", "4MiB"), 2, 10 << 20, 5 << 20),
    ],
)
def test_segments_take_all_of_the_tier(
    tmp_path: Path,
    flags: tuple[str, ...],
    num_segments: int,
    capacity_bytes: int,
    largest_bytes: int,
) -> None:
    daemon = StoreProcess(tmp_path, tmp_path / "s", flags)
    with contextlib.ExitStack() as stack:
        stack.callback(daemon.kill)
        daemon.start()
        client = stack.enter_context(client_of(daemon, timeout_s=60.0))
        stats = client.stats()
        assert stats["segments"] == num_segments
        assert stats["tiers"]["dram"]["capacity_bytes"] == capacity_bytes
        assert client.put("largest", bytes(largest_bytes)).status is PutStatus.STORED
        assert client.size("largest") == largest_bytes
