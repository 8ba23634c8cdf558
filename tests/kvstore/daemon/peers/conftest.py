"""Two stores of one cluster that tests share, with a client each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import BlockStore

from ....store_process import StoreProcess, start_nodes, store_processes
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, client_of


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StoreProcess]]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with store_processes(folder) as start:
        nodes = start_nodes(start, folder, 2, "--dram", "32MiB", "--segment", "4MiB")
        yield nodes


@pytest.fixture
def stores(nodes: list[StoreProcess]) -> Iterator[tuple[BlockStore, BlockStore]]:
    """Empty; at the end nothing is held, reserved or on its way at either node."""
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        here.clear()
        there.clear()
        with here.kv(NAMESPACE) as first, there.kv(NAMESPACE) as second:
            yield first, second
        for client in (here, there):
            wait_until(lambda client=client: is_idle(client.stats()))


def is_idle(stats: dict[str, object]) -> bool:
    return not any(stats[name] for name in ("in_flight", "fills", "pins", "tickets", "quarantined"))
