"""Blocks of which several replicas are wanted: made in the background, and again after a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.kvstore import InvalidRequest, JobResult, StoreClient, wire
from moontide.kvstore.keys import block_keys, kv_entry_id

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import client_of
from ..raw_client import local_client
from ..warm import NAMESPACE, admin_of, prompt, read_blocks, write_blocks

(SHARD,) = NAMESPACE.layout.whole()
LONG = prompt(70)
KEYS = block_keys(NAMESPACE, LONG)


def num_at(node: StoreProcess, tokens: list[int]) -> int:
    """Blocks of a prompt in the node's own tiers."""
    entries = [kv_entry_id(key, SHARD) for key in block_keys(NAMESPACE, tokens)]
    with local_client(node.socket) as raw:
        message = raw.call(wire.Exists([*entries], local_only=True)).message
        assert isinstance(message, wire.ExistsReply)
        return sum(message.found)


def _stat(client: StoreClient, name: str) -> int:
    return int(client.stats()["peers"][name])


def test_blocks_are_made_at_another_node_after_their_commit_and_again_when_it_is_lost(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """All of a chain at one node, in its order, and by whoever is left."""
    nodes = start_nodes(store_daemon, tmp_path, 3, "--dram", "32MiB", "--segment", "4MiB")
    single = prompt(3, seed=1)
    with client_of(nodes[0]) as client:
        write_blocks(client, LONG, replicas=2)
        write_blocks(client, single)
        wait_until(lambda: _stat(client, "made_replicas") == len(KEYS))
        expected = read_blocks(client, LONG)
        assert _stat(client, "due_replicas") == 0
        assert _stat(client, "wanted_replicas") == len(KEYS)
    counts = [num_at(node, LONG) for node in nodes]
    assert sorted(counts) == [0, len(KEYS), len(KEYS)]
    (taker,) = [node for node, count in zip(nodes[1:], counts[1:], strict=True) if count]
    told = admin_of(nodes[0]).get(f"/v1/explain?key=kv:{KEYS[40].hex()}")
    where = {"node-a", "node-b" if taker is nodes[1] else "node-c"}
    assert (told["replicas"], set(told["nodes"])) == (2, where)
    nodes[0].kill()
    others = nodes[1:]
    wait_until(lambda: [num_at(node, LONG) for node in others] == [len(KEYS)] * 2, seconds=30.0)
    assert [num_at(node, single) for node in others] == [0, 0]
    with client_of(taker) as client:
        wait_until(lambda: _stat(client, "repaired_entries") == len(KEYS))
        assert read_blocks(client, LONG) == expected
    told = admin_of(others[0]).post("/v1/move", {"to": None, "namespace": NAMESPACE.digest.hex()})
    assert told["left"] == 0  # as chains: the other one has them


def test_a_store_alone_takes_blocks_and_makes_their_replicas_once_it_is_not(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """Also of blocks that were there before anybody wanted more of them."""
    alone, late = start_nodes(store_daemon, tmp_path, 2)
    late.kill()
    with client_of(alone) as client:
        wait_until(lambda: not client.stats()["peers"]["known"], seconds=20.0)
        write_blocks(client, prompt(4))
        write_blocks(client, prompt(6), replicas=2)
        wait_until(lambda: _stat(client, "due_replicas") == 0)
        assert (_stat(client, "wanted_replicas"), _stat(client, "made_replicas")) == (6, 0)
        late.start()
        wait_until(lambda: _stat(client, "repaired_entries") == 6, seconds=30.0)
    assert num_at(late, prompt(6)) == 6


def test_a_node_that_keeps_no_blocks_of_others_takes_no_replicas(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    nodes = start_nodes(store_daemon, tmp_path, 2, "--remote-copies", "drop")
    with client_of(nodes[0]) as client, client_of(nodes[1]) as other:
        write_blocks(client, prompt(3), replicas=2)
        wait_until(lambda: _stat(client, "due_replicas") == 0)
        assert _stat(client, "made_replicas") == _stat(other, "wanted_replicas") == 0


def test_what_cannot_be_meant_is_refused(store_daemon: StartStore) -> None:
    with client_of(store_daemon()) as client:
        with pytest.raises(InvalidRequest, match="replicas is 0"):
            client.kv(NAMESPACE, replicas=0)
        with client.kv(NAMESPACE) as kv:
            store = kv.begin_store(prompt(2), replicas=2, deadline_s=20.0)
            results: list[JobResult] = []
            wait_until(lambda: results.extend(kv.poll()) or bool(results))
            assert results[0].job == store.job
            assert "no peers" in results[0].reason
