"""A host is cut off, comes back over 4 Mbit/s, and is whole again: no wrong byte, no call beyond
its deadline; what has a replica that can be reached is read throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from moontide.kvstore import PutStatus, StoreClient

from ..waiting import wait_until
from .cluster import Cluster
from .hosts import HOSTS
from .reading import SOON, Reader, content, is_read, read_all

pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]

KEYS_PER_HOST = 30


@contextmanager
def reading(cluster: Cluster, keys: list[str]) -> Iterator[dict[str, Reader]]:
    """At every host. No reader may have met a fault."""
    with ExitStack() as stack:
        readers = {}
        for host, store in cluster.stores.items():
            readers[host] = Reader(stack.enter_context(store.client()), keys)
            stack.callback(readers[host].stop)
        yield readers
    for host, reader in readers.items():
        assert reader.faults == [], f"at {host}"


def put_replicated(cluster: Cluster) -> list[str]:
    """Two replicas of each key, the first at each host in turn."""
    keys = []
    for host, store in cluster.stores.items():
        with store.client() as client:
            for number in range(KEYS_PER_HOST):
                keys.append(f"{host}-{number}")
                wait_until(
                    partial(has_two_replicas, client, keys[-1]), SOON, partial(str, keys[-1])
                )
    return keys


def has_two_replicas(client: StoreClient, key: str) -> bool:
    """Once it is put; on a busy machine other stores may take too long for a copy."""
    result = client.put(key, content(key), replicas=2, if_exists="replace", timeout_s=20)
    assert result.status is PutStatus.STORED
    return not result.reason


def has_link(client: StoreClient, host: str) -> bool:
    return host in client.stats()["peers"]["up"]


def all_exist(client: StoreClient, keys: list[str]) -> bool:
    return all(client.exists_many(keys))


def none_exists(client: StoreClient, keys: list[str]) -> bool:
    return not any(client.exists_many(keys))


def see_each_other(cluster: Cluster, clients: dict[str, StoreClient], host: str) -> bool:
    """Whether each of the others has its link to `host`."""
    return all(has_link(clients[other], host) for other in cluster.stores if other != host)


def test_a_host_is_cut_off_returns_slowly_and_is_whole_again(cluster: Cluster) -> None:
    network = cluster.network
    keys = put_replicated(cluster)
    with ExitStack() as stack:
        clients = {h: stack.enter_context(s.client()) for h, s in cluster.stores.items()}
        readers = stack.enter_context(reading(cluster, keys))
        for reader in readers.values():
            reader.await_reads(30)

        network.cut("c")
        wait_until(lambda: not any(has_link(clients[host], "c") for host in "ab"), SOON)
        for host in ("a", "b"):
            read_all(clients[host], keys)
            readers[host].await_reads(100)
        away = [f"away-{number}" for number in range(10)]
        for key in away:
            assert clients["c"].put(key, content(key)).status is PutStatus.STORED
        read_all(clients["c"], away)

        network.heal("c")
        network.throttle("c", "4mbit")
        wait_until(lambda: see_each_other(cluster, clients, "c"), SOON)
        for host in ("a", "b"):
            readers[host].await_reads(100)
        wait_until(lambda: is_read(clients["b"], away[0]), SOON)

        network.heal("c")
        for host in HOSTS:
            wait_until(partial(all_exist, clients[host], keys + away), SOON)
            read_all(clients[host], keys + away)
            readers[host].await_reads(30)
        assert clients["a"].remove_many(keys[:5]) == 5
        for host in HOSTS:
            wait_until(partial(none_exists, clients[host], keys[:5]), SOON)
    for host in HOSTS:
        cluster.check_at_rest(host)
