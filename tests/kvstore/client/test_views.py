"""Views: read in place, pinned, and what happens when the pin is lost."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from moontide.kvstore import (
    OutOfSpace,
    PutStatus,
    StoreClient,
    ViewExpired,
    wire,
)

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .helpers import NAMESPACE, SECONDS, Scribbler, client_of, write_prompt


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "32MiB", "--segment", "4MiB")


@pytest.fixture
def client(daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon) as client:
        client.clear()
        yield client


def test_a_viewed_entry_survives_removal_and_churn(client: StoreClient) -> None:
    value = os.urandom(1 << 20)
    client.put("kept", value)
    view = client.view("kept")
    assert view is not None
    with view:
        client.remove("kept")
        assert client.get("kept") is None
        for number in range(100):
            assert client.put(f"other{number}", os.urandom(1 << 20)).status is PutStatus.STORED
        assert view.data == value
    wait_until(lambda: client.stats()["pins"] == 0)


def test_a_pin_ends_with_the_view_however_it_ends(client: StoreClient) -> None:
    client.put("key", b"value")
    view = client.view("key")
    assert view is not None
    assert client.stats()["pins"] == 1
    view.release()
    view.release()
    assert client.stats()["pins"] == 0
    with pytest.raises(RuntimeError), client.view("key") or pytest.fail("a miss"):
        raise RuntimeError
    assert client.stats()["pins"] == 0
    dropped = client.view("key")
    del dropped
    gc.collect()
    assert client.stats()["pins"] == 0
    assert client.stats()["double_releases"] == 0


def test_one_client_pins_only_its_share(client: StoreClient) -> None:
    for number in range(5):
        client.put(f"key{number}", bytes(2 << 20))
    views = [client.view(f"key{number}") for number in range(4)]
    with pytest.raises(OutOfSpace, match="pin"):
        client.view("key4")
    for view in views:
        assert view is not None
        view.release()
    assert client.view("key4") is not None


def test_a_copied_view_needs_no_pin(daemon: StoreProcess, client: StoreClient) -> None:
    client.put("key", b"value")
    with client_of(daemon, "tcp") as remote:
        view = remote.view("key")
        assert view is not None
        client.remove("key")
        with view:
            assert view.data == b"value"
            assert view.valid()


def test_r15_a_pin_released_twice_or_by_another_is_refused_and_counted(
    daemon: StoreProcess, client: StoreClient
) -> None:
    client.put("key", os.urandom(4096))
    kv = client.kv(NAMESPACE)
    write_prompt(kv, range(32))
    view = client.view("key")
    ticket = kv.lookup(range(32), pin_s=60).ticket
    held = client.stats()["pins"]
    assert view is not None
    before = client.stats()["double_releases"]
    with Scribbler(daemon) as other:
        reply = other.request(wire.Lookup([b"skey"], 0.0))
        assert isinstance(reply, wire.LookupReply)
        assert other.request(wire.Unpin(reply.ticket)) == wire.Ok()
        for refused in (reply.ticket, b"forged", bytes(16)):
            answer = other.request(wire.Unpin(refused))
            assert isinstance(answer, wire.Failure)
            assert answer.code == "invalid_request"
    assert client.stats()["double_releases"] == before + 3
    assert client.stats()["pins"] == held
    assert view.valid()
    kv.release(ticket)
    kv.release(ticket)
    wait_until(lambda: client.stats()["double_releases"] == before + 4)
    assert client.stats()["pins"] == 1
    view.release()
    kv.close()


def test_r12_views_of_a_lost_daemon_stay_readable_and_expire(store_daemon: StartStore) -> None:
    """Restart with readers attached: their memory is not given to new entries."""
    daemon = store_daemon()
    with client_of(daemon) as client, client_of(daemon) as other:
        value = os.urandom(1 << 20)
        client.put("key", value)
        kv = client.kv(NAMESPACE)
        write_prompt(kv, range(64))
        hit = kv.lookup(range(64), pin_s=60)
        view, lost = client.view("key"), client.view("key")
        assert view is not None
        assert lost is not None
        daemon.restart()
        for number in range(100):
            other.put(f"new{number}", os.urandom(1 << 20))
        assert client.get("key", timeout_s=SECONDS) is None
        assert view.data == value
        assert not view.valid()
        with pytest.raises(ViewExpired, match="1048576 bytes"), lost:
            assert lost.data == value
        view.release()
        buffers = [[bytearray(kv.layer_bytes(0)) for _ in hit.blocks]]
        kv.lookup(range(64), timeout_s=SECONDS)  # the block store has reconnected too
        job = kv.submit_load(hit.ticket, [0], buffers, deadline_s=SECONDS)
        results = []
        wait_until(lambda: results.extend(kv.poll()) or results)
        assert results[0].job == job
        assert results[0].failed_blocks == (0, 1, 2, 3)
        assert results[0].reason.startswith("view_expired: ")
        assert client.put("key", b"again").status is PutStatus.STORED
        assert client.get("key") == b"again"
        assert client.stats()["pins"] == 0


def test_a_view_released_after_a_restart_tells_the_new_daemon_nothing(
    store_daemon: StartStore,
) -> None:
    """What belonged to an ended connection ended with it."""
    daemon = store_daemon()
    with client_of(daemon) as client:
        client.put("key", b"value")
        view = client.view("key")
        assert view is not None
        daemon.restart()
        view.release()
        stats = client.stats()
        assert (stats["double_releases"], stats["failures"]) == (0, {})
