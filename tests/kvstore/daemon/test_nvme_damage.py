"""A store whose disk lies, is full, or lost files: right bytes or a miss, and it goes on."""

from __future__ import annotations

import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore import StoreClient, StoreError, connect

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .warm import (
    NVME,
    admin_of,
    check_at_rest,
    client_of,
    layer_of,
    prompt,
    put_all,
    read_blocks,
    values,
    wait_flushed,
    write_blocks,
)

SEED = 16


def spoil_regions(nvme: Path, rng: random.Random) -> None:
    """Flipped bits and zeroed pages."""
    for region in region_files(nvme):
        data = bytearray(region.read_bytes())
        for _ in range(200):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        for _ in range(8):
            start = rng.randrange(len(data) // 4096) * 4096
            data[start : start + 4096] = bytes(4096)
        region.write_bytes(data)


def delete_index(nvme: Path, rng: random.Random) -> None:
    for file in nvme.rglob("data.mdb"):
        file.unlink()


def region_files(nvme: Path) -> list[Path]:
    files = [file for file in nvme.iterdir() if file.is_file() and file.stat().st_size > 4096]
    assert files, list(nvme.iterdir())
    return files


@pytest.mark.parametrize("damage", [spoil_regions, delete_index])
def test_a_damaged_disk_gives_right_bytes_or_misses(
    store_daemon: StartStore, damage: Callable[[Path, random.Random], None]
) -> None:
    node, entries, tokens = store_daemon(*NVME), values(150), prompt(20)
    with client_of(node) as client:
        put_all(client, entries)
        write_blocks(client, tokens)
    wait_flushed(node, len(entries) + 20)
    node.kill()
    damage(node.data_dir / "nvme", random.Random(SEED))
    node.start()
    with client_of(node) as client:
        for name, value in entries.items():
            assert client.get(name) in (None, value), name
        for layer, blocks in enumerate(_surviving(client, tokens)):
            assert blocks == [layer_of(block, layer) for block in range(len(blocks))]
        put_all(client, {"after": b"it goes on"})
        assert client.get("after") == b"it goes on"
    if damage is delete_index:
        hits = admin_of(node).stats()["tiers"]["nvme"]["hits"]
        assert hits >= len(entries), "the index is made again from the regions"
    check_at_rest(node)


def _surviving(client: StoreClient, tokens: list[int]) -> list[list[bytes]]:
    """What the prompt's prefix still gives; shorter each time a damaged block is met."""
    for _ in range(len(tokens)):
        try:
            return read_blocks(client, tokens)
        except StoreError:
            continue  # a block was damaged and is gone now
    raise AssertionError("every read met damage")


def limit_files(node: StoreProcess, num_bytes: int) -> None:
    """As a full disk does: no file of the process can grow beyond."""
    _, hard = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (num_bytes, hard))


def test_a_full_disk_costs_only_what_would_have_gone_there(store_daemon: StartStore) -> None:
    node = store_daemon(*NVME, "--nvme-region", "8MiB", "--nvme-compression", "off")
    admin = admin_of(node)
    entries = {f"full/{index}": random.Random(index).randbytes(500_000) for index in range(40)}
    with client_of(node) as client:
        limit_files(node, 0)
        put_all(client, entries)
        wait_until(lambda: admin.stats()["tiers"]["nvme"]["disk_errors"] > 0)
        assert [client.get(name) for name in entries] == list(entries.values())
        limit_files(node, resource.RLIM_INFINITY)
    wait_flushed(node, len(entries))
    check_at_rest(node)
    node.restart()
    with client_of(node) as client:
        assert [client.get(name) for name in entries] == list(entries.values())


def test_a_disk_that_is_emptied_under_a_store_costs_only_what_lay_there(
    store_daemon: StartStore,
) -> None:
    node = store_daemon(*NVME, "--dram", "16MiB", "--segment", "2MiB")
    admin = admin_of(node)
    before, after = values(200, largest=200_000), values(200, largest=200_000, seed=2)
    with client_of(node) as client:
        put_all(client, before)
        shutil.rmtree(node.data_dir / "nvme")
        put_all(client, after)
        for name, value in {**before, **after}.items():
            assert client.get(name) in (None, value), name
        assert client.stats()["instance"] == node.instance
    assert admin.stats()["internal_errors"] == 0
    check_at_rest(node)
    node.signal(signal.SIGTERM)
    assert node.wait() == 0
    node.start()
    with client_of(node) as client:
        put_all(client, before)
        wait_flushed(node, len(before))


def test_values_put_without_checksums_are_summed_before_they_leave_dram(
    store_daemon: StartStore,
) -> None:
    node, entries = store_daemon(*NVME), values(150, largest=200_000)
    with connect(f"unix:{node.socket}", timeout_s=20.0, checksums="off") as client:
        put_all(client, entries)
    wait_flushed(node, len(entries))
    node.kill()
    spoil_regions(node.data_dir / "nvme", random.Random(SEED))
    node.start()
    with connect(f"unix:{node.socket}", timeout_s=20.0, checksums="off") as client:
        found = {name: client.get(name) for name in entries}
    assert all(value in (None, entries[name]) for name, value in found.items())
    assert admin_of(node).stats()["tiers"]["nvme"]["corrupt"] > 0
    assert any(found.values())
    check_at_rest(node)
