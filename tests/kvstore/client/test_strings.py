"""String entries through the client, over shared memory and over TCP, against a real daemon."""

from __future__ import annotations

import array
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moontide.kvstore import (
    AccessDenied,
    Conflict,
    InvalidRequest,
    PutStatus,
    StoreClient,
    StoreUnavailable,
    connect,
)
from moontide.kvstore.keys import MAX_STRING_KEY_BYTES
from moontide.kvstore.wire import MAX_KEYS

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .helpers import address, client_of

INLINE_BYTES = 64 << 10


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "128MiB", "--segment", "16MiB")


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon, request.param) as client:
        client.clear()
        yield client


@pytest.mark.parametrize(
    "size", [0, 1, 63, 4096, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 1 << 20, 16 << 20]
)
def test_what_was_put_comes_back(client: StoreClient, size: int) -> None:
    value = os.urandom(size)
    assert client.get("key") is None
    assert client.put("key", value).status is PutStatus.STORED
    assert client.get(b"key") == value
    assert client.size("key") == size
    assert client.exists("key")
    buffer = bytearray(size + 7)
    assert client.get_into("key", buffer) == size
    assert buffer == value + bytes(7)
    view = client.view("key")
    assert view is not None
    with view:
        assert view.data == value
        assert view.data.readonly
    assert client.remove("key")
    assert not client.remove("key")
    assert client.get("key") is client.size("key") is client.view("key") is None
    assert client.get_into("key", buffer) is None


def test_r01_values_of_64_mib(store_daemon: StartStore) -> None:
    daemon = store_daemon("--dram", "256MiB", "--segment", "64MiB")
    value = os.urandom(64 << 20)
    for transport in ("unix", "tcp"):
        with client_of(daemon, transport, timeout_s=30) as client:
            assert client.put("big", value).status is PutStatus.STORED
            assert client.get("big") == value
            buffer = bytearray(len(value))
            assert client.get_into("big", buffer) == len(value)
            assert buffer == value
            assert client.remove("big")
            with pytest.raises(InvalidRequest, match=rf"{len(value) + 1}.*{len(value)} at most"):
                client.put("big", value + b"x")


BUFFERS: dict[str, Callable[[], Any]] = {
    "bytearray": lambda: bytearray(b"abcd"),
    "memoryview": lambda: memoryview(b"xabcdx")[1:5],
    "array": lambda: array.array("H", b"abcd"),
    "numpy": lambda: np.arange(12, dtype=np.float32).reshape(3, 4),
    "half floats": lambda: np.arange(4, dtype=np.float16),
    "big endian": lambda: np.arange(4, dtype=">i8"),
    "structured": lambda: np.zeros(3, dtype=[("a", "<i4"), ("b", "<f8")]),
    "empty": lambda: np.empty((0, 4)),
    "a scalar": lambda: np.array(3.5),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
def test_any_contiguous_buffer_can_be_put_and_filled(
    client: StoreClient, make: Callable[[], Any]
) -> None:
    data = make()
    expected = np.asarray(data).tobytes()
    client.put("key", data)
    assert client.get("key") == expected
    buffer = np.full(len(expected), 7, dtype=np.uint8)
    assert client.get_into("key", buffer) == len(expected)
    assert buffer.tobytes() == expected


def test_buffers_that_cannot_be_used_are_refused(client: StoreClient) -> None:
    square = np.zeros((4, 4))
    with pytest.raises(InvalidRequest, match="not C-contiguous"):
        client.put("key", square[:, 0])
    with pytest.raises(InvalidRequest, match="not C-contiguous"):
        client.put("key", np.asfortranarray(np.arange(12).reshape(3, 4)))
    with pytest.raises(InvalidRequest, match="str"):
        client.put("key", "text")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest, match="read-only"):
        client.get_into("key", b"fixed")
    client.put("key", b"123456")
    with pytest.raises(InvalidRequest, match=r"buffer of 5 bytes .* 6"):
        client.get_into("key", bytearray(5))
    with pytest.raises(InvalidRequest, match="2 keys and 1 buffers"):
        client.get_many_into(["a", "b"], [bytearray(1)])


def test_arguments_out_of_bounds_are_named(client: StoreClient) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("0 bytes.*1..1024", lambda: client.get("")),
        ("1025 bytes.*1..1024", lambda: client.put("k" * (MAX_STRING_KEY_BYTES + 1), b"")),
        ("if_exists is 'maybe'", lambda: client.put("k", b"", if_exists="maybe")),  # type: ignore[arg-type]  # wrong on purpose
        ("replicas is 0.* 1..16", lambda: client.put("k", b"", replicas=0)),
        ("replicas is 17", lambda: client.put("k", b"", replicas=17)),
        ("timeout of 0 ", lambda: client.get("k", timeout_s=0)),
        ("timeout of nan", lambda: client.get("k", timeout_s=float("nan"))),
        ("ttl_s of -1 seconds", lambda: client.put("k", b"", ttl_s=-1)),
        ("timeout of 1000", lambda: client.get("k", timeout_s=10**400)),
        ("soft_pin is 'x'", lambda: client.put("k", b"", soft_pin="x")),  # type: ignore[arg-type]  # wrong on purpose
        ("data is a ndarray", lambda: client.put("k", np.zeros(1, "M8[D]"))),
        ("timeout of '5'", lambda: client.get("k", timeout_s="5")),  # type: ignore[arg-type]  # wrong on purpose
    ]
    for message, call in calls:
        with pytest.raises(InvalidRequest, match=message):
            call()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"token": b"secret"}, "token is a bytes; give the text"),
        ({"token": "secret", "tls": ("a", "b", "c")}, "tls is a tuple; give TlsFiles"),
        ({}, "needs token="),
    ],
)
def test_what_connect_cannot_use_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        connect("tcp://127.0.0.1:1", **given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1])
def test_an_existing_key_is_kept_replaced_or_an_error(client: StoreClient, size: int) -> None:
    one, two = os.urandom(size), os.urandom(size)
    assert client.put("key", one).status is PutStatus.STORED
    assert client.put("key", two).status is PutStatus.EXISTS
    assert client.get("key") == one
    with pytest.raises(Conflict, match=r"key.*exists"):
        client.put("key", two, if_exists="error")
    assert client.put("key", two, if_exists="replace").status is PutStatus.STORED
    assert client.get("key") == two


def test_an_entry_ends_with_its_time(client: StoreClient) -> None:
    client.put("short", b"x", ttl_s=0.05)
    client.put("long", b"x", ttl_s=60)
    wait_until(lambda: client.get("short") is None)
    assert client.get("long") == b"x"


def test_batches_keep_their_order_and_may_repeat_keys(client: StoreClient) -> None:
    small, large = b"s" * 100, b"l" * (INLINE_BYTES + 1)
    values = [small, large, small, b"", large, b"z"]
    results = client.put_many([(f"key{i}", value) for i, value in enumerate(values)])
    assert [result.status for result in results] == [PutStatus.STORED] * 6
    keys = ["key4", "key0", "none", "key4", "key3"]
    assert client.get_many(keys) == [large, small, None, large, b""]
    assert client.exists_many(keys) == [True, True, False, True, True]
    buffers = [bytearray(len(large)) for _ in keys]
    sizes = client.get_many_into(keys, buffers)
    assert sizes == [len(large), len(small), None, len(large), 0]
    assert bytes(buffers[3]) == large
    again = client.put_many([("new", b"1"), ("new", b"2"), ("big", large), ("big", large)])
    assert [result.status.name for result in again] == ["STORED", "EXISTS"] * 2
    assert client.get("new") == b"1"
    assert client.remove_many(["key0", "none", "key1", "key0"]) == 2
    assert client.get_many([]) == client.put_many([]) == client.exists_many([]) == []
    generated = client.put_many((key, b"1") for key in ("once", "twice"))  # type: ignore[arg-type]  # also works
    assert [result.status.name for result in generated] == ["STORED"] * 2


def test_batches_larger_than_a_message_are_split(client: StoreClient) -> None:
    count = MAX_KEYS + 100
    keys = [f"{index:07}" + "k" * 500 for index in range(count)]
    results = client.put_many([(key, key[:7].encode()) for key in keys], timeout_s=60)
    assert {result.status for result in results} == {PutStatus.STORED}
    assert client.get_many(keys, timeout_s=60) == [key[:7].encode() for key in keys]
    assert all(client.exists_many(keys, timeout_s=60))
    assert client.remove_many(keys, timeout_s=60) == count


def test_a_full_pool_refuses_for_now_and_says_so(client: StoreClient) -> None:
    """Views pin up to their share; the rest stays evictable, so only a reservation that fits
    nowhere is FULL. What was refused can be put later."""
    keys = [f"key{index}" for index in range(300)]
    results = client.put_many([(key, os.urandom(1 << 20)) for key in keys], timeout_s=60)
    assert {result.status for result in results} <= {PutStatus.STORED, PutStatus.FULL}
    client.clear()
    assert client.put("after", bytes(16 << 20)).status is PutStatus.STORED


def test_clear_and_stats(client: StoreClient) -> None:
    client.put_many([(f"key{index}", b"value") for index in range(10)])
    assert client.stats()["tiers"]["dram"]["entries"] == 10
    assert client.clear() == 10
    assert client.stats()["tiers"]["dram"]["entries"] == 0
    assert client.get("key1") is None


def test_many_threads_share_a_client(client: StoreClient) -> None:
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(30):
            size = (number * 7919 + turn * 104729) % (100 << 10)
            value = bytes([number, turn]) * size
            key = f"{number}/{turn}"
            result = client.put(key, value)
            if client.get(key) != value:
                failures.append(f"{key}: {result}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_closed_client_says_so(daemon: StoreProcess) -> None:
    client = connect(address(daemon))
    client.close()
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.get("key")


def test_connecting_to_nothing_ends_at_its_deadline(tmp_path: os.PathLike[str]) -> None:
    for where, token in ((f"unix:{tmp_path}/none.sock", ""), ("tcp://127.0.0.1:1", "t")):
        with pytest.raises(StoreUnavailable, match=r"no store at .* within 0.2 s"):
            connect(where, token=token, timeout_s=0.2)


def test_a_wrong_token_is_refused_at_once(daemon: StoreProcess) -> None:
    with pytest.raises(AccessDenied):
        connect(address(daemon, "tcp"), token="wrong", timeout_s=30)
    with pytest.raises(InvalidRequest, match="token"):
        connect(address(daemon, "tcp"))


@pytest.mark.parametrize("text", ["", "/tmp/x", "unix:", "tcp://host", "tcp://:1", "tcp://h:0"])
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        connect(text, token="t")


def test_a_socket_path_that_the_kernel_would_cut_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"108 bytes.*1..107"):
        connect("unix:/" + "x" * 107)
