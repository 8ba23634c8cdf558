"""Pinned keys: one round trip for all, none for each."""

from __future__ import annotations

import asyncio
import gc
import os

import pytest

from moontide.kvstore import (
    InvalidRequest,
    OutOfSpace,
    StoreClient,
    ViewExpired,
    connect_async,
)

from ...store_process import StoreProcess
from ...waiting import wait_until
from .helpers import SECONDS, address, client_of

SIZES = [0, 1, 4096, 70_000, 300_000]


def put_values(client: StoreClient) -> dict[str, bytes]:
    values = {f"key{size}": os.urandom(size) for size in SIZES}
    client.put_many(list(values.items()))
    return values


def pins(client: StoreClient) -> int:
    number: int = client.stats()["pins"]
    return number


def test_pinned_keys_are_read_whatever_becomes_of_them(
    client: StoreClient, daemon: StoreProcess
) -> None:
    values = put_values(client)
    with client.pin(["absent", *values], ttl_s=60) as pinned, client_of(daemon) as other:
        assert pinned.keys == list(values)
        assert other.remove("key4096")
        other.put("key1", b"replaced", if_exists="replace")
        for number in range(80):
            other.put(f"other{number}", os.urandom(1 << 20))
        for key, value in values.items():
            with pinned.view(key) as view:
                assert view.data == value
                assert view.valid()
                assert view.verify()
            buffer = bytearray(len(value) + 3)
            assert pinned.get_into(key.encode(), buffer) == len(value)
            assert buffer[: len(value)] == value
        assert client.get("key4096") is None
        with pytest.raises(InvalidRequest, match="absent"):
            pinned.view("absent")
        with pytest.raises(InvalidRequest, match="too small"):
            pinned.get_into("key70000", bytearray(69_999))
        assert pins(client) == len(values)
    assert pins(client) == 0
    assert client.stats()["double_releases"] == 0


def test_local_reads_of_pinned_keys_need_no_daemon(daemon: StoreProcess) -> None:
    with client_of(daemon) as client:
        client.clear()
        values = put_values(client)
        with client.pin(list(values)) as pinned:
            before = sum(client.stats()["requests"].values())
            for key, value in values.items():
                assert pinned.view(key).data == value
                assert pinned.get_into(key, bytearray(len(value))) == len(value)
            assert sum(client.stats()["requests"].values()) == before + 1


def test_released_pins_give_nothing_more(client: StoreClient) -> None:
    put_values(client)
    pinned = client.pin(["key1"])
    pinned.release()
    pinned.release()
    for read in (lambda: pinned.view("key1"), lambda: pinned.renew(1.0)):
        with pytest.raises(ViewExpired, match="ended"):
            read()
    assert pins(client) == 0
    assert client.stats()["double_releases"] == 0


def test_a_ticket_ends_by_itself_unless_it_is_renewed(client: StoreClient) -> None:
    put_values(client)
    pinned, short = client.pin(["key1"], ttl_s=0.2), client.pin(["key4096"], ttl_s=0.2)
    pinned.renew(60)
    wait_until(lambda: pins(client) == 1)
    assert bytes(pinned.view("key1").data)
    with pytest.raises(ViewExpired, match="renew"):
        short.get_into("key4096", bytearray(4096))
    with pytest.raises(ViewExpired):
        short.renew(60)
    pinned.release()
    assert pins(client) == 0


def test_a_view_whose_ticket_has_ended_and_bytes_have_changed_expires(
    daemon: StoreProcess,
) -> None:
    with client_of(daemon) as client:
        client.clear()
        put_values(client)
        pinned = client.pin(["key300000"], ttl_s=60)
        view = pinned.view("key300000")
        client.remove("key300000")
        assert view.valid()
        pinned.release()
        wait_until(lambda: not view.valid())
        with pytest.raises(ViewExpired), view:
            pass


def test_dropped_pins_are_released(client: StoreClient) -> None:
    put_values(client)
    pinned = client.pin(["key1"])
    assert pins(client) == 1
    del pinned
    gc.collect()
    assert pins(client) == 0


def test_what_cannot_be_pinned_is_refused_and_nothing_stays(client: StoreClient) -> None:
    for number in range(12):
        client.put(f"large{number}", bytes(1 << 20))
    with pytest.raises(OutOfSpace, match="pin"):
        client.pin([f"large{number}" for number in range(12)])
    for ttl_s in (0, -1.0, float("nan")):
        with pytest.raises(InvalidRequest):
            client.pin(["large1"], ttl_s=ttl_s)
    assert client.pin([]).keys == []
    assert pins(client) == 0


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_pinned_keys_in_asyncio(daemon: StoreProcess, transport: str) -> None:
    async def work() -> None:
        token = daemon.token if transport == "tcp" else ""
        async with await connect_async(
            address(daemon, transport), token=token, timeout_s=SECONDS
        ) as client:
            value = os.urandom(100_000)
            await client.put("key", value, if_exists="replace")
            async with await client.pin(["key", "absent"]) as pinned:
                assert pinned.keys == ["key"]
                await pinned.renew(30)
                assert (await pinned.view("key")).data == value
                buffer = bytearray(len(value))
                assert await pinned.get_into("key", buffer) == len(value)
                assert buffer == value
            assert (await client.stats())["pins"] == 0

    asyncio.run(work())
