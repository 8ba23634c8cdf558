"""Prefetch: entries come to DRAM before they are asked for, and nothing is held or waited for."""

from __future__ import annotations

import asyncio

import pytest

from moontide.kvstore import InvalidRequest, StoreTimeout, connect_async

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from ..daemon.warm import (
    NAMESPACE,
    NVME,
    admin_of,
    client_of,
    prompt,
    put_all,
    values,
    wait_flushed,
    write_blocks,
)

NUM_BLOCKS = 20


@pytest.fixture
def cold(store_daemon: StartStore) -> StoreProcess:
    """A store whose entries lie on disk only."""
    node = store_daemon(*NVME)
    with client_of(node) as client:
        put_all(client, values(30))
        write_blocks(client, prompt(NUM_BLOCKS))
    wait_flushed(node, 30 + NUM_BLOCKS)
    admin_of(node).post("/v1/evict", {"tier": "dram"})
    return node


def in_dram(node: StoreProcess) -> int:
    entries: int = admin_of(node).stats()["tiers"]["dram"]["entries"]
    return entries


def test_strings_come_from_disk_and_nothing_is_pinned(cold: StoreProcess) -> None:
    names = list(values(30))
    with client_of(cold) as client:
        assert client.prefetch([*names, "nothing"]) == len(names)
        wait_until(lambda: in_dram(cold) == len(names))
        assert admin_of(cold).stats()["pins"] == 0
        assert client.get_many(names) == list(values(30).values())
        assert client.prefetch(names) == len(names)
    assert admin_of(cold).stats()["tiers"]["nvme"]["hits"] == len(names)


def test_blocks_come_from_disk(cold: StoreProcess) -> None:
    tokens = prompt(NUM_BLOCKS)
    with client_of(cold) as client, client.kv(NAMESPACE) as store:
        store.prefetch(tokens)
        wait_until(lambda: in_dram(cold) == NUM_BLOCKS)
        hit = store.lookup(tokens)
        assert hit.num_tokens == len(tokens)
        assert set(hit.tiers) == {"dram"}
        assert admin_of(cold).stats()["pins"] == 0


def test_the_async_client_prefetches_too(cold: StoreProcess) -> None:
    async def run() -> None:
        async with await connect_async(f"unix:{cold.socket}") as client:
            assert await client.prefetch(list(values(30))) == 30
            async with await client.kv(NAMESPACE) as store:
                store.prefetch(prompt(NUM_BLOCKS))

    asyncio.run(run())
    wait_until(lambda: in_dram(cold) == 30 + NUM_BLOCKS)


def test_r21_a_prefetch_ends_at_its_deadline_when_the_store_is_stopped(
    cold: StoreProcess,
) -> None:
    with client_of(cold) as client, client.kv(NAMESPACE) as store, cold.stopped(), within(1.5):
        store.prefetch(prompt(NUM_BLOCKS))
        with pytest.raises(StoreTimeout):
            client.prefetch(list(values(30)), timeout_s=0.5)


def test_a_tier_that_cannot_be_filled_is_refused(cold: StoreProcess) -> None:
    with client_of(cold) as client, pytest.raises(InvalidRequest, match="dram"):
        client.prefetch(["a"], tier="hbm")  # type: ignore[arg-type]  # what is refused
