"""Blocks that a user removes are gone at every node, also at those that were away."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from moontide.kvstore.keys import block_keys

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import client_of
from ..warm import ALICE, NAMESPACE, admin_of, prompt, read_blocks, wait_flushed, write_blocks
from .test_block_replicas import num_at

TOKENS = prompt(6)
KEYS = block_keys(NAMESPACE, TOKENS)
NVME = ("--nvme", "64MiB")


@pytest.fixture
def holders(store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    """Both have all of TOKENS on disk, and as much of another namespace."""
    nodes = start_nodes(store_daemon, tmp_path, 2, *NVME)
    for node in nodes:
        with client_of(node) as client:
            write_blocks(client, TOKENS)
            write_blocks(client, TOKENS, ALICE)
        wait_flushed(node, 2 * len(KEYS))
    return nodes


def wait_noted(nodes: list[StoreProcess]) -> None:
    """All have written down the last removal."""
    records = [node.data_dir / "removals.json" for node in nodes]

    def are_equal() -> bool:
        return (
            all(each.exists() for each in records)
            and len({each.read_bytes() for each in records}) == 1
        )

    wait_until(are_equal)


def _counts(nodes: list[StoreProcess]) -> list[int]:
    return [num_at(node, TOKENS) for node in nodes]


def test_what_a_client_removes_is_gone_at_every_node(holders: list[StoreProcess]) -> None:
    """From memory and from disk, and nothing brings it back; a block that is put again is there."""
    there = holders[1]
    with client_of(there) as client:
        assert client.remove_blocks(NAMESPACE, TOKENS, first_block=2) == 4
        assert client.remove_blocks(NAMESPACE, TOKENS, first_block=2) == 0
        assert _counts(holders) == [2, 2]
        with client.kv(NAMESPACE) as kv:
            assert kv.lookup(TOKENS).num_tokens == 2 * NAMESPACE.block_tokens
        write_blocks(client, TOKENS)
    wait_flushed(there, 2 * len(KEYS))
    assert _counts(holders) == [2, 6]
    for node in holders:
        told = admin_of(node).get(f"/v1/explain?key=kv:{KEYS[5].hex()}")
        assert told["state"] == ("committed" if node is there else "dropped")
    wait_noted(holders)
    for node in holders:
        node.restart()
    assert _counts(holders) == [2, 6]


def test_what_an_operator_removes_is_gone_at_every_node(holders: list[StoreProcess]) -> None:
    """Asked of a node that does not have it, too."""
    here = holders[0]
    admin_of(here).post("/v1/evict", {"keys": [f"kv:{KEYS[0].hex()}"]})
    assert _counts(holders) == [5, 6]
    removed = admin_of(here).call("DELETE", f"/v1/blocks/kv:{KEYS[0].hex()}")
    assert (removed.status, removed.body) == (200, {"removed": 1})
    assert _counts(holders) == [5, 5]
    again = admin_of(here).call("DELETE", f"/v1/blocks/kv:{KEYS[0].hex()}")
    assert again.body == {"removed": 0}


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_node_that_was_away_forgets_what_a_removed_block_was_of(
    holders: list[StoreProcess], how: str
) -> None:
    """All blocks of that namespace, since nobody says which one, from memory and from disk; not
    those of others. Whoever was there lost the one that was removed, also after a restart."""
    stays, away = holders

    def remove() -> None:
        with client_of(stays) as client:
            wait_until(lambda: not client.stats()["peers"]["known"], seconds=20.0)
            assert client.remove_blocks(NAMESPACE, TOKENS, first_block=5) == 1

    if how == "killed":
        away.kill()
        remove()
        away.start()
    else:
        with away.stopped():
            remove()
    wait_until(lambda: num_at(away, TOKENS) == 0, seconds=20.0)
    wait_noted(holders)
    stays.restart()
    assert _counts(holders) == [5, 0]
    with client_of(away) as client, client.kv(ALICE) as kv:
        assert kv.lookup(TOKENS).num_tokens == len(TOKENS)
        write_blocks(client, TOKENS)
    wait_flushed(away, 2 * len(KEYS))
    away.restart()
    assert num_at(away, TOKENS) == 6


def test_a_node_that_returns_gives_nothing_away_until_it_knows_what_was_removed(
    holders: list[StoreProcess], tmp_path: Path
) -> None:
    """However long that takes, here since the numbers cannot be read: it would be there again."""
    stays, away = holders
    numbers = tmp_path / "cluster" / "floors"
    with client_of(stays) as client, client.kv(NAMESPACE) as kv:
        with away.stopped():
            wait_until(lambda: not client.stats()["peers"]["known"], seconds=20.0)
            assert client.remove_blocks(NAMESPACE, TOKENS, first_block=5) == 1
            readable = numbers.rename(tmp_path / "numbers")
            numbers.mkdir()
        wait_until(lambda: len(client.stats()["peers"]["up"]) == 1, seconds=20.0)
        assert num_at(away, TOKENS) == 6
        for _ in range(20):
            assert kv.lookup(TOKENS).num_tokens == 5 * NAMESPACE.block_tokens
            time.sleep(0.05)  # for a second: long enough to be brought back by a lookup
        numbers.rmdir()
        readable.rename(numbers)
        wait_until(lambda: num_at(away, TOKENS) == 0, seconds=20.0)
        assert _counts(holders) == [5, 0]
        write_blocks(client, TOKENS)
    with client_of(away) as client:
        assert read_blocks(client, TOKENS)
