"""Blocks that only the node's disk holds: found, waited for, loaded like any others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moontide.kvstore import BlockStore, JobStatus, StoreClient, Tier

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from ..daemon.admin import Admin
from ..daemon.warm import wait_flushed
from .helpers import (
    NAMESPACE,
    SECONDS,
    TOKENS,
    buffers_for,
    check_prompt,
    client_of,
    layers_of,
    result_of,
    write_prompt,
)

FLAGS = ("--dram", "32MiB", "--segment", "4MiB", "--nvme", "64MiB")


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon(*FLAGS)


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon, request.param) as client:
        client.clear()
        yield client
        wait_until(lambda: not any(client.stats()[name] for name in ("pins", "in_flight")))


@pytest.fixture
def kv(client: StoreClient) -> Iterator[BlockStore]:
    with client.kv(NAMESPACE) as kv:
        yield kv


def move_to_disk(daemon: StoreProcess, client: StoreClient, num_entries: int) -> None:
    """Until they lie on disk; then DRAM gives up its replicas."""
    wait_flushed(daemon, num_entries)
    assert client.stats()["tiers"]["nvme"]["entries"] == num_entries
    Admin(daemon.admin, daemon.token).post("/v1/evict", {"tier": "dram", "bytes": 1 << 30})
    wait_until(lambda: client.stats()["tiers"]["dram"]["entries"] == 0)


def test_an_engine_loads_from_disk_by_jobs(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore
) -> None:
    write_prompt(kv, TOKENS)
    move_to_disk(daemon, client, 6)
    job = kv.submit_lookup(TOKENS, pin_s=SECONDS, deadline_s=SECONDS)
    hit = result_of(kv, job).hit
    assert hit is not None
    assert (hit.num_tokens, hit.tiers, hit.transports) == (96, (Tier.NVME,) * 6, ("file",) * 6)
    buffers = buffers_for(kv, range(4), 6)
    job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
    assert result_of(kv, job).status is JobStatus.DONE
    assert buffers == layers_of(kv, kv.keys(TOKENS))
    kv.release(hit.ticket)
    again = kv.lookup(TOKENS)  # they stay in DRAM
    assert (again.tiers, again.transports) == ((Tier.DRAM,) * 6, ("shm",) * 6)
    assert check_prompt(kv, TOKENS) == 96


def test_disk_and_dram_together_are_one_prefix(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore
) -> None:
    write_prompt(kv, TOKENS[:48])
    move_to_disk(daemon, client, 3)
    write_prompt(kv, TOKENS, first_block=3)
    hit = kv.lookup(TOKENS, pin_s=SECONDS)
    assert hit.num_tokens == 96
    assert hit.transports == ("file",) * 3 + ("shm",) * 3
    buffers = buffers_for(kv, range(4), 6)
    assert kv.load(hit.ticket, range(4), buffers).status is JobStatus.DONE
    assert buffers == layers_of(kv, kv.keys(TOKENS))
    kv.release(hit.ticket)


def test_string_entries_come_from_disk(daemon: StoreProcess, client: StoreClient) -> None:
    values = {"small": b"s", "large": bytes(range(256)) * 1024}
    client.put_many(list(values.items()))
    move_to_disk(daemon, client, 2)
    assert client.exists_many([*values, "absent"]) == [True, True, False]
    assert client.get_many([*values, "absent"]) == [*values.values(), None]
    move_to_disk(daemon, client, 2)
    view = client.view("large")
    assert view is not None
    with view:
        assert view.data == values["large"]
    assert client.remove_many(list(values)) == 2
    assert client.exists_many(list(values)) == [False, False]


def test_r09_r10_what_is_damaged_on_disk_has_failed(store_daemon: StartStore) -> None:
    daemon = store_daemon(*FLAGS, "--nvme-compression", "off")
    with client_of(daemon) as client, client.kv(NAMESPACE) as kv:
        write_prompt(kv, TOKENS)
        move_to_disk(daemon, client, 6)
        content = layers_of(kv, kv.keys(TOKENS))
    damaged = [_damage(daemon, content[layer][block]) for layer, block in ((2, 4), (1, 5))]
    assert damaged == [1, 1]
    with client_of(daemon) as client, client.kv(NAMESPACE) as kv:
        hit = kv.lookup(TOKENS, pin_s=SECONDS)
        assert hit.num_tokens == 96
        buffers = buffers_for(kv, range(4), 6)
        result = kv.load(hit.ticket, range(4), buffers)
        assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (4, 5))
        assert [row[:4] for row in buffers] == [layer[:4] for layer in content]
        kv.release(hit.ticket)
        wait_until(lambda: kv.lookup(TOKENS).num_tokens == 64)
        assert check_prompt(kv, TOKENS) == 64


def _damage(daemon: StoreProcess, extent: bytes) -> int:
    """Flips a bit of each copy of `extent` in the region files; how many there were."""
    damaged = 0
    for path in (daemon.data_dir / "nvme").rglob("*"):
        if path.is_file() and path.suffix != ".mdb":
            place = path.read_bytes().find(extent)
            if place >= 0:
                with path.open("r+b") as region:
                    region.seek(place)
                    region.write(bytes([extent[0] ^ 1]))
                damaged += 1
    return damaged
