"""Pools hardly larger than a value: everything stored can be read, over any transport."""

from __future__ import annotations

import os

import pytest

from moontide.kvstore import PutStatus

from ...store_process import StartStore
from .helpers import client_of

SEGMENT = 1 << 20


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_value_as_large_as_the_pool_is_stored_and_read(
    store_daemon: StartStore, transport: str
) -> None:
    daemon = store_daemon("--dram", "1MiB", "--segment", "1MiB", "--max-entries", "8")
    with client_of(daemon, transport) as client:
        for index in range(3):
            value = os.urandom(SEGMENT)
            assert client.put(f"k{index}", value).status is PutStatus.STORED
            assert client.get(f"k{index}") == value
            assert client.get_many(["absent", f"k{index}"]) == [None, value]
        for index in range(20):
            assert client.put(f"tiny{index}", bytes([index])).status is PutStatus.STORED
        assert client.put("large", value).status is PutStatus.STORED
        assert client.stats()["tiers"]["dram"]["entries"] == 1


def test_get_many_of_the_whole_pool_over_tcp(store_daemon: StartStore) -> None:
    daemon = store_daemon("--dram", "4MiB", "--segment", "1MiB")
    with client_of(daemon, "tcp") as client:
        values = {f"k{index}": os.urandom(SEGMENT // 2) for index in range(8)}
        results = client.put_many(list(values.items()))
        stored = [key for key, got in zip(values, results, strict=True) if got.status == 0]
        for key in values.keys() - set(stored):
            assert client.put(key, values[key]).status is PutStatus.STORED
        assert client.get_many(list(values)) == list(values.values())
        hits = client.stats()["tiers"]["dram"]["hits"]
        assert client.get("k0") == values["k0"]
        assert client.stats()["tiers"]["dram"]["hits"] == hits + 1
