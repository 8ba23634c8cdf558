"""The asyncio mirror."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

import pytest

from moontide.kvstore import (
    AsyncClient,
    Busy,
    PutStatus,
    StoreClient,
    StoreTimeout,
    StoreUnavailable,
    connect_async,
)
from moontide.kvstore.client import async_client

from ...store_process import StartStore, StoreProcess
from ...waiting import within
from .helpers import SECONDS, address


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon()


def run(daemon: StoreProcess, work: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with await connect_async(address(daemon), timeout_s=SECONDS) as client:
            await work(client)

    asyncio.run(main())


def test_it_mirrors_every_call_of_the_client() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(call).parameters)
            for name, call in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and name != "after_fork"
        }

    assert calls(AsyncClient) == calls(StoreClient)


def test_calls_give_what_the_clients_give(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient) -> None:
        value = bytes(range(256)) * 1000
        assert (await client.put("a", value)).status is PutStatus.STORED
        assert (await client.put(b"a", b"", if_exists="keep")).status is PutStatus.EXISTS
        results = await client.put_many([("b", b"1"), ("c", b"2")])
        assert [result.status for result in results] == [PutStatus.STORED] * 2
        assert await client.get("a") == value
        assert await client.get_many(["b", "none", "c"]) == [b"1", None, b"2"]
        buffer = bytearray(len(value))
        assert await client.get_into("a", buffer) == len(value)
        assert buffer == value
        assert await client.get_many_into(["b"], [bytearray(1)]) == [1]
        view = await client.view("a")
        assert view is not None
        with view:
            assert view.data == value
        assert await client.exists("a")
        assert await client.exists_many(["a", "none"]) == [True, False]
        assert await client.size("a") == len(value)
        assert await client.remove("a")
        assert await client.remove_many(["b", "c", "d"]) == 2
        assert (await client.stats())["tiers"]["dram"]["entries"] == 0
        assert await client.clear() == 0

    run(daemon, work)


def test_many_calls_at_once(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient) -> None:
        await asyncio.gather(*(client.put(f"k{i}", bytes([i]) * 1000) for i in range(200)))
        values = await asyncio.gather(*(client.get(f"k{i}") for i in range(200)))
        assert values == [bytes([i]) * 1000 for i in range(200)]

    run(daemon, work)


def test_r21_waiting_for_a_thread_counts(store_daemon: StartStore) -> None:
    daemon = store_daemon()

    async def work(client: AsyncClient) -> None:
        with daemon.stopped(), within(0.3 * 1.1 + 0.3):
            outcomes = await asyncio.gather(
                *(client.get("key", timeout_s=0.3) for _ in range(20)), return_exceptions=True
            )
        assert all(isinstance(error, StoreTimeout | StoreUnavailable) for error in outcomes)

    run(daemon, work)


def test_too_many_waiting_calls_are_refused(
    store_daemon: StartStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "MAX_CALLS", 8)
    daemon = store_daemon()

    async def work(client: AsyncClient) -> None:
        with daemon.stopped():  # none of them ends meanwhile
            outcomes = await asyncio.gather(
                *(client.get("key", timeout_s=0.3) for _ in range(20)), return_exceptions=True
            )
        refused = [outcome for outcome in outcomes if isinstance(outcome, Busy)]
        assert len(refused) == 12
        assert await client.get("key") is None

    run(daemon, work)


def test_r17_cancelled_calls_do_not_count_against_the_limit(
    store_daemon: StartStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that run end by themselves; those that waited for a thread never run."""
    monkeypatch.setattr(async_client, "MAX_CALLS", 8)
    daemon = store_daemon()

    async def work(client: AsyncClient) -> None:
        for _ in range(3):
            with daemon.stopped():
                calls = [asyncio.ensure_future(client.get("key", timeout_s=0.2)) for _ in range(8)]
                await asyncio.sleep(0)  # let them begin
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
            deadline = time.monotonic() + SECONDS
            while True:
                try:
                    assert await client.get("key") is None
                    break
                except (Busy, StoreTimeout, StoreUnavailable):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)

    run(daemon, work)
