"""Puts through runs: any sizes in one batch, one result each, and no space kept."""

from __future__ import annotations

import os
import threading

import pytest
import xxhash

from moontide.kvstore import InvalidRequest, PutResult, PutStatus, StoreClient, connect, wire
from moontide.kvstore.types import IfExists

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from ..daemon.admin import Admin
from .helpers import SECONDS, Scribbler, address, client_of, value_of

SMALL_SIZES = [100, 0, 64, 63, 4095, 1, 0, 65]
SIZES = [*SMALL_SIZES, 4096, 5000, 1 << 20, 8192, 4097]
PAGES = [4096, 5000, 8192, 4097]
LINES = [64, 1024, 4032]


def audit(daemon: StoreProcess) -> object:
    return Admin(daemon.admin, daemon.token).post("/v1/audit")["differences"]


def requests(client: StoreClient, name: str) -> int:
    return int(client.stats()["requests"].get(name, 0))


@pytest.mark.parametrize("sizes", [SIZES, SMALL_SIZES, PAGES, LINES], ids=str)
def test_a_batch_of_any_sizes_is_one_message(daemon: StoreProcess, sizes: list[int]) -> None:
    with client_of(daemon) as client:
        client.clear()
        items = [(f"key{number}", os.urandom(size)) for number, size in enumerate(sizes * 2)]
        client.put("first", b"takes the run")
        before = requests(client, "CommitRun")
        results = client.put_many(items)
        assert results == [PutResult(PutStatus.STORED)] * len(items)
        assert requests(client, "CommitRun") == before + 1
        assert client.get_many([key for key, _ in items]) == [value for _, value in items]
        assert audit(daemon) == []
        assert client.clear() == len(items) + 1
        wait_until(lambda: client.stats()["tiers"]["dram"]["used_bytes"] == 0)  # runs are idle
        assert audit(daemon) == []


def test_values_of_all_kinds_of_buffers(client: StoreClient) -> None:
    values = [b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview")[3:], bytes(5000)]
    results = client.put_many([(f"key{number}", value) for number, value in enumerate(values)])
    assert {result.status for result in results} == {PutStatus.STORED}
    assert client.get_many([f"key{number}" for number in range(4)]) == [*map(bytes, values)]


@pytest.mark.parametrize(("if_exists", "messages"), [("keep", 2), ("replace", 1)])
def test_many_entries_are_committed_while_others_are_copied(
    daemon: StoreProcess, if_exists: IfExists, messages: int
) -> None:
    """Unless the daemon may ask other nodes first: then each message is waited for."""
    with client_of(daemon) as client:
        client.clear()
        keys = [f"k{number}" for number in range(900)]
        items = [(key, value_of(key, 40 + len(key), 1)) for key in keys]
        items[700] = items[3]  # meets itself in another message
        before = requests(client, "CommitRun")
        results = client.put_many(items, if_exists=if_exists)
        assert requests(client, "CommitRun") - before == messages
        stored = [result.status is PutStatus.STORED for result in results]
        assert stored.count(False) == (if_exists == "keep")
        assert stored[700] is (if_exists == "replace")
        assert client.get_many([key for key, _ in items]) == [value for _, value in items]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one core nobody looks")
@pytest.mark.parametrize(
    ("count", "size", "times"),
    [(1, 4096, 0), (1, 1 << 20, 1), (1, 4 << 20, 1), (32, 1000, 0), (32, 64 << 10, 1)],
)
def test_large_puts_are_announced_once(
    daemon: StoreProcess, monkeypatch: pytest.MonkeyPatch, count: int, size: int, times: int
) -> None:
    """So that the daemon is awake when what was copied is to be committed; not while others want
    the cores."""
    monkeypatch.setattr("moontide.transfer.Cores.are_enough", lambda _: True)
    items = [(f"k{number}", bytes(size)) for number in range(count)]
    with client_of(daemon) as client:
        client.put_many(items)  # from now on there is a run

        def announcements() -> int:
            before = requests(client, "NoteUse")
            results = client.put_many(items, if_exists="replace")
            assert {result.status for result in results} == {PutStatus.STORED}
            return requests(client, "NoteUse") - before

        wait_until(lambda: announcements() == times)


def test_large_calls_take_several_messages(daemon: StoreProcess) -> None:
    """Of more entries than one may name, and more bytes than a segment has."""
    with client_of(daemon) as client:
        client.clear()
        tiny = [(b"tiny%d" % number, b"%d" % number) for number in range(wire.MAX_KEYS + 100)]
        assert {result.status for result in client.put_many(tiny)} == {PutStatus.STORED}
        client.clear()
        large = [(f"k{number}", value_of(f"k{number}", 700_000, 1)) for number in range(20)]
        assert {result.status for result in client.put_many(large)} == {PutStatus.STORED}
        assert client.get_many([key for key, _ in large]) == [value for _, value in large]
        assert audit(daemon) == []


@pytest.mark.parametrize("size", [10, 5000, 1 << 20])
def test_every_item_has_its_own_result(client: StoreClient, size: int) -> None:
    client.put("there", b"first")
    items = [("new", bytes(size)), ("there", bytes(size)), ("twice", b"1"), ("twice", b"22")]
    statuses = [result.status for result in client.put_many(items)]
    stored, exists = PutStatus.STORED, PutStatus.EXISTS
    assert statuses == [stored, exists, stored, exists]
    assert client.get_many(["new", "there", "twice"]) == [bytes(size), b"first", b"1"]
    results = client.put_many(items, if_exists="replace")
    assert {result.status for result in results} == {stored}
    assert client.get_many(["new", "there", "twice"]) == [bytes(size), bytes(size), b"22"]


def test_r19_a_pool_full_of_pins_refuses_each_item_and_recovers(store_daemon: StartStore) -> None:
    daemon = store_daemon("--dram", "8MiB", "--segment", "1MiB")
    held = [client_of(daemon) for _ in range(4)]
    with held[0] as first, held[1] as second, held[2] as third, held[3] as writer:
        views = []
        for number in range(6):
            writer.put(f"held{number}", bytes(1 << 20))
        for client, numbers in ((first, (0, 1)), (second, (2, 3)), (third, (4, 5))):
            views += [client.view(f"held{number}") for number in numbers]
        items = [(f"key{number}", bytes(900_000)) for number in range(12)]
        results = writer.put_many(items)
        assert len(results) == len(items)
        assert {result.status for result in results} <= {PutStatus.STORED, PutStatus.FULL}
        for view in views:
            assert view is not None
            view.release()
        wait_until(
            lambda: (
                {result.status for result in writer.put_many(items[:3], if_exists="replace")}
                == {PutStatus.STORED}
            )
        )
        wait_until(lambda: writer.stats()["in_flight"] == writer.stats()["pins"] == 0)
        assert audit(daemon) == []


def test_writers_whose_segments_are_taken_back_put_all_the_same(store_daemon: StartStore) -> None:
    """Four clients in a pool of eight segments: the daemon wants grants back all the time."""
    daemon = store_daemon("--dram", "8MiB", "--segment", "1MiB")
    problems: list[str] = []

    def work(number: int) -> None:
        with client_of(daemon) as client:
            for version in range(60):
                keys = [f"k{number * 10 + index}" for index in range(5)]
                items = [(key, value_of(key, 60_000, version)) for key in keys]
                results = client.put_many(items, if_exists="replace")
                if any(result.status is PutStatus.FAILED for result in results):
                    problems.append(f"{results}")
                for (key, value), found in zip(items, client.get_many(keys), strict=True):
                    if found not in (value, None):
                        problems.append(f"{key} version {version}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    with client_of(daemon) as client:
        wait_until(lambda: client.stats()["in_flight"] == 0)
        client.clear()
        wait_until(lambda: client.stats()["tiers"]["dram"]["used_bytes"] == 0)
    assert audit(daemon) == []


def test_threads_of_one_client_have_runs_of_their_own(daemon: StoreProcess) -> None:
    with client_of(daemon) as client:
        client.clear()
        problems: list[str] = []

        def work(number: int) -> None:
            for version in range(50):
                key = f"k{number}"
                value = value_of(key, 300 * version + number, version)
                client.put(key, value, if_exists="replace")
                if client.get(key) != value:
                    problems.append(f"{key} version {version}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not problems
        wait_until(lambda: client.stats()["in_flight"] == 0)
        assert audit(daemon) == []


def test_a_closed_client_leaves_no_run(daemon: StoreProcess) -> None:
    with client_of(daemon) as witness:
        with client_of(daemon) as client:
            client.put_many([("key", b"value"), ("large", bytes(100_000))], if_exists="replace")
        wait_until(lambda: witness.stats()["in_flight"] == 0)
        assert witness.stats()["tiers"]["dram"]["quarantined_bytes"] == 0
        assert witness.get("key") == b"value"


def test_entries_put_without_checksums_have_none(daemon: StoreProcess) -> None:
    sizes = [10, 5000, 100_000, 1 << 20]
    with (
        connect(address(daemon), timeout_s=SECONDS, checksums="off") as client,
        client_of(daemon, "tcp") as remote,
        Scribbler(daemon) as raw,
    ):
        client.clear()
        values = {f"key{size}": os.urandom(size) for size in sizes}
        assert {each.status for each in client.put_many(list(values.items()))} == {PutStatus.STORED}
        remote.put("summed", values["key5000"])
        reply = raw.request(wire.Lookup([b"s" + key.encode() for key in (*values, "summed")]))
        assert isinstance(reply, wire.LookupReply)
        expected = xxhash.xxh3_64_intdigest(values["key5000"])
        assert [found and found[5] for found in reply.found] == [0, 0, 0, 0, expected]
        for reader in (client, remote):
            for _ in range(2):
                assert reader.get_many(list(values)) == list(values.values())
            assert reader.get("summed") == values["key5000"]
            with reader.view("key100000") or pytest.fail("a miss") as view:
                assert view.verify()
                assert view.data == values["key100000"]


def test_checksums_are_on_or_off(daemon: StoreProcess) -> None:
    with pytest.raises(InvalidRequest, match="'maybe'; give one of on, off"):
        connect(address(daemon), checksums="maybe")  # type: ignore[arg-type]  # what it refuses
