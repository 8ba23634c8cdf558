"""Blocks and string entries that lie only on another node's disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import StoreClient, Tier

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, TOKENS, check_prompt, client_of, write_prompt
from ..admin import Admin
from ..warm import wait_flushed
from .conftest import is_idle


@pytest.fixture(scope="module")
def clients(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StoreClient, StoreClient]]:
    """Everything that the first stored lies on its disk only."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    nodes = start_nodes(module_store_daemon, folder, 2, "--nvme", "256MiB")
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        with here.kv(NAMESPACE) as kv:
            write_prompt(kv, TOKENS)
        here.put("string", b"s" * 100_000)
        wait_flushed(nodes[0], 7)
        drop_from_dram(nodes[0])
        yield here, there
        for client in (here, there):
            wait_until(lambda client=client: is_idle(client.stats()), 15.0)


def drop_from_dram(node: StoreProcess) -> None:
    admin = Admin(node.admin, node.token)
    admin.post("/v1/evict", {"tier": "dram"})
    assert admin.stats()["tiers"]["dram"]["entries"] == 0


def test_blocks_on_another_nodes_disk_are_read_through_its_dram(
    clients: tuple[StoreClient, StoreClient],
) -> None:
    here, there = clients
    with there.kv(NAMESPACE) as kv:
        hits = []
        wait_until(lambda: hits.append(kv.lookup(TOKENS)) or hits[-1].num_tokens == 96)
        assert Tier.NVME in hits[-1].tiers
        assert "tcp" in hits[-1].transports
        assert check_prompt(kv, TOKENS) == 96
    sent, received = (client.stats()["transports"] for client in (here, there))
    assert sent["file"]["bytes_in"] == received["tcp"]["bytes_in"] == sent["tcp"]["bytes_out"]


def test_string_entries_on_another_nodes_disk(clients: tuple[StoreClient, StoreClient]) -> None:
    _, there = clients
    wait_until(lambda: there.exists("string"))
    assert there.get("string") == b"s" * 100_000
    assert there.remove("string")
    assert [client.get("string") for client in clients] == [None, None]
