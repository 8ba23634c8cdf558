"""Settings of a worker that cannot work are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from moontide.engine_adapters.builtin.worker.settings import WorkerSettings
from moontide.kvstore.service import HostPort


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"role": "decode", "store": "none"}, r"role=decode with store=none.*--role both"),
        ({"kv_replicas": 2, "store": "none"}, r"kv_replicas=2 with store=none"),
        ({"idle_batch_tokens": 8}, r"idle_batch_tokens=8.*max_batch_tokens=512"),
        ({"cluster": "file:/c", "listen": HostPort("0.0.0.0", 7440)}, r"listen=0.0.0.0:7440"),
        ({"cluster": "file:/c", "listen": HostPort("::", 7440)}, r"listen=\[::\]:7440"),
    ],
)
def test_contradictions_name_the_value_and_the_fix(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        WorkerSettings(id="w", **changes)


def test_a_worker_of_no_cluster_may_listen_everywhere() -> None:
    assert WorkerSettings(id="w", listen=HostPort("0.0.0.0", 7440)).listen.is_wildcard
