"""Gets of entries whose place the client knows: no word to the daemon, and never an old value."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from moontide.kvstore import (
    ForkedClient,
    InvalidRequest,
    PutStatus,
    StoreClient,
    StoreTimeout,
    StoreUnavailable,
)
from moontide.kvstore.client import locations

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .helpers import NAMESPACE, SECONDS, client_of, fork, is_value_of, value_of, wait_until_asked

SIZES = [0, 1, 100, 4095, 4096, 70_000, 1 << 20]


@pytest.fixture
def client(daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon) as client:
        client.clear()
        yield client


@pytest.fixture
def other(daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon) as other:
        yield other


def warm(client: StoreClient, *keys: str) -> None:
    """`client` has their segments mapped and knows where they are."""
    client.get_many(keys)
    before = client.counters.located_hits
    client.get_many(keys)
    assert client.counters.located_hits == before + len(keys)


def hits(client: StoreClient) -> int:
    return client.counters.located_hits


def test_what_was_read_or_put_is_read_again_without_asking(
    client: StoreClient, other: StoreClient
) -> None:
    values = {f"key{size}": os.urandom(size) for size in SIZES}
    other.put_many(list(values.items()))
    assert client.get_many(list(values)) == list(values.values())
    lookups = client.stats()["requests"]["Locate"]
    for key, value in values.items():
        buffer = bytearray(len(value) + 1)
        assert client.get(key) == value
        assert client.get_into(key, buffer) == len(value)
        assert buffer[:-1] == value
        assert client.exists(key)
        assert client.size(key) == len(value)
    buffers = [bytearray(size) for size in SIZES]
    assert client.get_many(list(values)) == list(values.values())
    assert client.get_many_into(list(values), buffers) == SIZES
    assert buffers == list(values.values())
    assert hits(client) == 4 * len(SIZES)
    assert client.stats()["requests"]["Locate"] == lookups
    own = os.urandom(5000)
    client.put("own", own)
    client.get("own")  # maps the segment, if it is another
    before = hits(client)
    assert client.get("own") == own
    assert hits(client) == before + 1


def test_a_batch_looks_up_only_what_is_not_known(client: StoreClient, other: StoreClient) -> None:
    values = {f"key{number}": os.urandom(100 + number) for number in range(100)}
    other.put_many(list(values.items()))
    keys = list(values)
    warm(client, *keys[::2])
    before, lookups = hits(client), client.stats()["requests"]["Locate"]
    assert client.get_many([*keys, "absent"]) == [*values.values(), None]
    assert hits(client) == before + 50
    assert client.stats()["requests"]["Locate"] == lookups + 1


def test_a_change_by_another_client_is_seen_at_once(
    client: StoreClient, other: StoreClient
) -> None:
    for number in range(50):
        client.put("key", b"%d" % number, if_exists="replace")
        warm(client, "key")
        other.put("key", b"other %d" % number, if_exists="replace")
        assert client.get("key") == b"other %d" % number
        warm(client, "key")
        assert other.remove("key")
        assert client.get("key") is None
        assert not client.exists("key")
        assert client.size("key") is None
        assert client.get_many(["key"]) == [None]
    client.put("key", b"value")
    warm(client, "key")
    other.clear()
    assert client.get("key") is None


def test_an_absence_is_not_kept(client: StoreClient, other: StoreClient) -> None:
    assert client.get("key") is None
    other.put("key", b"value")
    assert client.get("key") == b"value"


def test_an_evicted_entry_is_a_miss(client: StoreClient, other: StoreClient) -> None:
    keys = [f"key{number}" for number in range(20)]
    values = {key: value_of(f"k{key[3:]}", 1 << 20, 1) for key in keys}
    client.put_many(list(values.items()))
    for number in range(60):
        client.put(f"more{number}", bytes(1 << 20))
    found = client.get_many(keys)
    assert None in found
    assert all(value in (None, values[key]) for key, value in zip(keys, found, strict=True))
    assert found == [other.get(key) for key in keys]


def test_entries_with_a_ttl_are_asked_for(client: StoreClient) -> None:
    client.put("key", b"value", ttl_s=60)
    client.put("short", b"value", ttl_s=0.05)
    before = hits(client)
    assert [client.get("key") for _ in range(3)] == [b"value"] * 3
    wait_until(lambda: client.get("short") is None)
    assert hits(client) == before


def test_a_removed_entry_under_a_pin_is_not_read(client: StoreClient, other: StoreClient) -> None:
    client.put("key", b"value")
    warm(client, "key")
    with other.view("key") or pytest.fail("a miss") as view:
        other.remove("key")
        assert client.get("key") is None
        assert view.data == b"value"
        client.put("key", b"again")
        assert client.get("key") == b"again"
        assert view.data == b"value"


def test_r21_a_stopped_daemon_is_asked_and_does_not_answer(store_daemon: StartStore) -> None:
    """It could not tell of a change made elsewhere."""
    daemon = store_daemon()
    with client_of(daemon) as client:
        client.put("key", b"value")
        warm(client, "key")
        with daemon.stopped():
            wait_until_asked(client, "key")
            for read in (client.get, client.exists, client.size):
                with pytest.raises((StoreTimeout, StoreUnavailable)):
                    read("key", timeout_s=0.1)
        wait_until(lambda: client.get("key") == b"value")


def test_a_restarted_daemon_has_other_entries(store_daemon: StartStore) -> None:
    daemon = store_daemon()
    with client_of(daemon) as client, client_of(daemon) as other:
        client.put("key", b"value")
        warm(client, "key")
        daemon.restart()
        other.put("key", b"other", timeout_s=SECONDS)
        assert client.get("key", timeout_s=SECONDS) == b"other"


def test_nothing_is_read_after_close_or_in_a_child(
    client: StoreClient, daemon: StoreProcess
) -> None:
    client.put("key", b"value")
    warm(client, "key")
    child = fork()
    if not child:
        try:
            client.get("key")
        except ForkedClient:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.get("key") == b"value"
    with client_of(daemon) as closed:
        closed.get("key")
    with pytest.raises(InvalidRequest, match="closed"):
        closed.get("key")


def test_uses_are_told_to_the_daemon(client: StoreClient) -> None:
    client.put("key", bytes(1000))
    warm(client, "key")
    before = client.stats()["tiers"]["dram"]
    for _ in range(3000):
        client.get("key")
    wait_until(lambda: client.stats()["tiers"]["dram"]["hits"] - before["hits"] >= 2000)


def test_locations_are_bounded_and_the_rest_is_looked_up(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "MAX_LOCATIONS", 64)
    values = {f"key{number}": b"%d" % number for number in range(1000)}
    for key, value in values.items():
        client.put(key, value)
    for _ in range(2):
        for key, value in values.items():
            assert client.get(key) == value
    assert hits(client) < 64 * 4
    for _ in range(3):
        assert client.get_many(list(values)) == list(values.values())


def test_a_get_that_races_with_replaces_is_one_value_or_the_other(
    client: StoreClient, other: StoreClient
) -> None:
    """Large values: a copy takes longer than a replace."""
    stop = threading.Event()
    client.put("k1", value_of("k1", 300_000, 0))

    def replace() -> None:
        version = 0
        while not stop.is_set():
            version = (version + 1) % 256
            size = (300_000, 200_000, 4096)[version % 3]
            other.put("k1", value_of("k1", size, version), if_exists="replace")
            if version % 16 == 0:
                other.remove("k1")

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(2000):
            value = client.get("k1")
            assert value is None or is_value_of("k1", value)
    finally:
        stop.set()
        writer.join()
    assert client.counters.corrupt == 0


def test_threads_of_one_client_share_what_it_knows(client: StoreClient) -> None:
    problems: list[str] = []

    def work(number: int) -> None:
        keys = [f"k{number * 10 + index}" for index in range(10)]
        for version in range(40):
            items = [(key, value_of(key, 500 * version, version)) for key in keys]
            results = client.put_many(items, if_exists="replace")
            if {result.status for result in results} != {PutStatus.STORED}:
                problems.append(f"{results}")
            for key, value in items:
                if client.get(key) != value:
                    problems.append(f"{key} version {version}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert hits(client) > 1000


def test_blocks_of_a_namespace_are_not_mixed_up_with_strings(client: StoreClient) -> None:
    with client.kv(NAMESPACE) as kv:
        client.put("key", b"value")
        warm(client, "key")
        assert kv.lookup(range(64)).num_tokens == 0
        assert client.get("key") == b"value"
