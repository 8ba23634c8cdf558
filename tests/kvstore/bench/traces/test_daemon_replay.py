"""A cut of the trace through a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.kvstore.bench.traces.daemon_replay import DaemonSizes, replay_through_daemon
from moontide.kvstore.bench.traces.replay import replay_policy
from moontide.kvstore.bench.traces.trace import TraceRequest, read_trace
from moontide.kvstore.types import Tier

TRACE = Path(__file__).parents[3] / "data" / "traces" / "conversation_3000.jsonl.gz"


@pytest.fixture(scope="module")
def requests() -> list[TraceRequest]:
    return read_trace(TRACE)[:240]


def test_with_room_for_all_a_daemon_hits_what_there_is(
    requests: list[TraceRequest], tmp_path: Path
) -> None:
    through = replay_through_daemon(requests, "slru", DaemonSizes(8000, 0), tmp_path)
    alone = replay_policy(requests, "slru", 8000)
    assert through.replayed.whole.hits == alone.whole.hits > 300
    assert through.loaded == {Tier.DRAM: alone.whole.hits, Tier.NVME: 0}


def test_nvme_gives_back_what_dram_had_no_room_for(
    requests: list[TraceRequest], tmp_path: Path
) -> None:
    through = replay_through_daemon(requests, "lru", DaemonSizes(1000, 7000), tmp_path)
    alone = replay_policy(requests, "lru", 1000)
    assert through.loaded[Tier.NVME] > 0
    assert through.replayed.whole.hits > 1.5 * alone.whole.hits
    assert through.most_blocks[Tier.DRAM] <= 1000
    assert through.most_blocks[Tier.NVME] <= 7000
