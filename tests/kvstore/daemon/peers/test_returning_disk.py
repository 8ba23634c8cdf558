"""A node that was away for a while and comes back with its disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from moontide.kvstore import Tier

from ....store_process import StartStore, start_nodes
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, TOKENS, check_prompt, client_of, write_prompt
from ..admin import Admin
from ..warm import wait_flushed

NUM_BLOCKS = 6


@pytest.mark.parametrize("away_seconds", [0.0, pytest.param(15.0, marks=pytest.mark.soak)])
def test_r49_disk_entries_count_again_on_return_and_nobody_scans_for_them(
    store_daemon: StartStore, tmp_path: Path, away_seconds: float
) -> None:
    """They are told by the returning node's one stream; nothing of it is listed, looked up or read
    before a hit is."""
    nodes = start_nodes(store_daemon, tmp_path, 2, "--nvme", "256MiB")
    returning, staying = nodes
    with client_of(returning) as client:
        with client.kv(NAMESPACE) as kv:
            write_prompt(kv, TOKENS)
        wait_flushed(returning, NUM_BLOCKS)
    returning.kill()
    with client_of(staying) as client, client.kv(NAMESPACE) as kv:
        wait_until(lambda: kv.lookup(TOKENS).num_tokens == 0)
        time.sleep(away_seconds)
        returning.start()
        wait_until(lambda: client.stats()["peers"]["indexed_blocks"] == NUM_BLOCKS)
        told = Admin(returning.admin, returning.token).stats()
        assert told["event_streams"] == 1
        assert set(told["requests"]) <= {"Hello", "OpenNamespace"}
        assert told["tiers"]["nvme"]["bytes_out"] == 0
        hit = kv.lookup(TOKENS)
        assert (hit.num_tokens, Tier.NVME in hit.tiers) == (96, True)
        assert check_prompt(kv, TOKENS) == 96
