"""Stores on three hosts of a network that a test cuts, throttles and floods."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from moontide.kvstore import StoreClient, connect

from ..authority import Authority, flags
from ..waiting import wait_until
from .cluster import Cluster, HostedStore
from .hosts import HOSTS, Network
from .lacking import lacking
from .reading import SOON


def has_both_links(client: StoreClient) -> bool:
    return len(client.stats()["peers"]["up"]) == len(HOSTS) - 1


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    if missing := lacking():
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    network = Network()
    yield network
    network.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, network: Network, tmp_path: Path) -> Iterator[Cluster]:
    """A store on each host, linked to both others, plain or, with the parameter "tls", not; the
    network is whole again afterwards."""
    sockets = Path(tempfile.mkdtemp(prefix="mt-"))
    tls = None
    more: tuple[str, ...] = ()
    if getattr(request, "param", "plain") == "tls":
        authority = Authority(tmp_path / "authority")
        tls, more = authority.issue("client"), flags(authority.issue("store"))
    stores = {host: HostedStore(network, host, tmp_path, sockets, *more) for host in HOSTS}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, sockets)
        for host, store in stores.items():
            stack.callback(network.heal, host)
            stack.callback(store.kill)
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            list(pool.map(HostedStore.start, stores.values()))
        cluster = Cluster(network, stores, tls)
        for store in stores.values():
            client = stack.enter_context(connect(f"unix:{store.socket}"))
            wait_until(partial(has_both_links, client), SOON)
        yield cluster
