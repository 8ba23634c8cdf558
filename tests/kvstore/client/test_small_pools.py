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


@pytest.mark.parametrize(
    ("value_bytes", "total_bytes"), [(64 << 10, 60 << 20), (4 << 20, 64 << 20)]
)
def test_the_daemon_fills_the_segment_that_it_keeps_before_anything_goes(
    store_daemon: StartStore, value_bytes: int, total_bytes: int
) -> None:
    """Into 64 MiB. Of smaller values the rests of runs, up to half a MiB of each, stay empty."""
    daemon = store_daemon("--dram", "64MiB", "--segment", "8MiB")
    with client_of(daemon) as client:
        values = {
            f"k{index}": index.to_bytes(4, "little") * (value_bytes // 4)
            for index in range(total_bytes // value_bytes)
        }
        results = client.put_many(list(values.items()))
        assert {result.status for result in results} == {PutStatus.STORED}
        assert client.get_many(list(values)) == list(values.values())
        assert client.stats()["refused_puts"] == 0
