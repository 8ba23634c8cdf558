"""What tests of KV blocks share: a daemon a module, and a client over each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moontide.kvstore import BlockStore, StoreClient

from ...store_process import StartStore, StoreProcess
from .helpers import NAMESPACE, client_of, wait_until


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "32MiB", "--segment", "4MiB")


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
