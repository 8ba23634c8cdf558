"""Random changes and reads at two nodes, one after another, against a dict."""

from __future__ import annotations

import random

from moontide.kvstore import PutStatus

from ....store_process import StoreProcess
from ....waiting import wait_until
from ...client.helpers import client_of


def test_r01_a_get_returns_the_last_acknowledged_value_or_a_miss(
    nodes: list[StoreProcess],
) -> None:
    rng = random.Random(23)
    model: dict[str, bytes | None] = {}
    with client_of(nodes[0]) as first, client_of(nodes[1]) as second:
        clients = (first, second)
        wait_until(lambda: all(c.stats()["peers"]["up"] for c in clients))
        for step in range(1500):
            client, key = rng.choice(clients), f"model {rng.randrange(12)}"
            what = rng.random()
            if what < 0.25:
                size = rng.choice((0, 50, 70_000))
                value = f"{key} {step} ".encode() + rng.randbytes(size)
                assert client.put(key, value, if_exists="replace").status is PutStatus.STORED
                model[key] = value
            elif what < 0.35:
                client.remove(key)
                model[key] = None
            else:
                assert client.get(key) in (None, model.get(key)), (step, key)
