"""What tests of the client share: a store, or two nodes, a module; a client over each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moontide.kvstore import BlockStore, StoreClient

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until
from .helpers import NAMESPACE, client_of

FLAGS = ("--dram", "32MiB", "--segment", "4MiB")


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon(*FLAGS)


@pytest.fixture(scope="module")
def nodes(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> list[StoreProcess]:
    return start_nodes(module_store_daemon, tmp_path_factory.mktemp("cluster"), 2, *FLAGS)


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon, request.param) as client:
        client.clear()
        yield client
        wait_until(lambda: client.stats()["in_flight"] == 0)


@pytest.fixture
def kv(client: StoreClient) -> Iterator[BlockStore]:
    with client.kv(NAMESPACE) as kv:
        yield kv


@pytest.fixture(params=["unix", "tcp"])
def reading_client(
    request: pytest.FixtureRequest, nodes: list[StoreProcess]
) -> Iterator[StoreClient]:
    """Of the second node. Nothing is held or on its way at the end."""
    with client_of(nodes[1], request.param) as client:
        yield client
        wait_until(lambda: not any(client.stats()[name] for name in ("pins", "in_flight")))
