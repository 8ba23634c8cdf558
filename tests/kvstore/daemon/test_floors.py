"""Floors in a real daemon: over its disk, a restart, a client's open handle, and two nodes."""

from __future__ import annotations

import dataclasses
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore import BlockStore, JobResult, StoreUnavailable, Ticket, connect, wire
from moontide.kvstore.opening import namespace_message

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until
from .admin import Admin
from .raw_client import local_client
from .warm import (
    BLOCK_TOKENS,
    LAYER_BYTES,
    NAMESPACE,
    NUM_LAYERS,
    NVME,
    admin_of,
    check_at_rest,
    client_of,
    hits,
    layer_of,
    prompt,
    wait_flushed,
    write_blocks,
)

DIGEST = NAMESPACE.digest.hex()
NUM_BLOCKS = 8
TOKENS = prompt(NUM_BLOCKS)


def disk_is_known_clear(node: StoreProcess) -> bool:
    """From now on what is stored goes there."""
    record = json.loads((node.data_dir / "floors.json").read_bytes())
    return not record["on_disk"]


def test_r31_a_raised_floor_holds_in_dram_on_disk_and_after_a_kill(
    store_daemon: StartStore,
) -> None:
    node = store_daemon(*NVME)
    with client_of(node) as client:
        write_blocks(client, TOKENS)
        wait_flushed(node, NUM_BLOCKS)
        with client.kv(NAMESPACE) as store:
            assert hits(store, TOKENS) == len(TOKENS)
            answer = admin_of(node).post("/v1/floor", {"namespace": DIGEST})
            assert answer == {"floors": {DIGEST: 1}, "in_force": ["node-a"], "away": []}
            assert hits(store, TOKENS) == 0
    node.restart()  # kill -9
    with client_of(node) as client, client.kv(NAMESPACE) as store:
        assert hits(store, TOKENS) == 0
    wait_until(lambda: admin_of(node).stats()["tiers"]["nvme"]["entries"] == 0)
    check_at_rest(node)


@pytest.mark.parametrize("by", ["shared memory", "tcp"])
def test_r31_what_was_found_without_a_ticket_is_read_no_more_once_a_raise_is_answered(
    store_daemon: StartStore, by: str
) -> None:
    """However many there are to sweep, and though another's ticket keeps the bytes."""
    node, count = store_daemon(), 2000
    tokens = prompt(count)
    address = f"unix:{node.socket}" if by == "shared memory" else f"tcp://{node.listen}"
    token = "" if by == "shared memory" else node.token
    with connect(address, token=token, timeout_s=20.0) as client:
        write_blocks(client, tokens)
        with client.kv(NAMESPACE) as store:
            known = store.lookup(tokens)
            pinned = store.lookup(tokens[: 8 * BLOCK_TOKENS], pin_s=60.0)
            assert (len(known.blocks), len(pinned.blocks)) == (count, 8)
            assert loaded(store, known.ticket, count) == {*range(count)}
            admin_of(node).post("/v1/floor", {"namespace": DIGEST})
            assert loaded(store, known.ticket, count) == set()
            assert loaded(store, pinned.ticket, 8) == {*range(8)}


def loaded(store: BlockStore, ticket: Ticket, count: int) -> set[int]:
    """Which of the blocks a load brings."""
    buffers = [bytearray(LAYER_BYTES) for _ in range(count)]
    store.submit_load(ticket, [1], [buffers], deadline_s=20.0)
    results: list[JobResult] = []
    wait_until(lambda: bool(results.extend(store.poll()) or results))
    good = {*range(count)}.difference(results[0].failed_blocks)
    assert all(buffers[block] == layer_of(block, 1) for block in good)
    return good


def test_what_is_stored_after_a_raise_is_found_through_the_old_handle_and_survives(
    store_daemon: StartStore,
) -> None:
    node = store_daemon(*NVME)
    with client_of(node) as client, client.kv(NAMESPACE) as store:
        write_blocks(client, TOKENS)
        admin_of(node).post("/v1/floor", {"namespace": DIGEST})
        with store.writer(TOKENS) as writer:
            for layer in range(NUM_LAYERS):
                writer.layer(layer, [layer_of(block, layer) for block in range(NUM_BLOCKS)])
        assert hits(store, TOKENS) == len(TOKENS)
        wait_until(lambda: disk_is_known_clear(node))
        wait_flushed(node, NUM_BLOCKS)
    node.restart()
    with client_of(node) as client, client.kv(NAMESPACE) as store:
        assert hits(store, TOKENS) == len(TOKENS)


def test_r31_a_floor_raised_without_the_disk_holds_there_when_it_is_back(
    store_daemon: StartStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two raises, a start between them: the record goes on naming what the disk may hold."""
    monkeypatch.setenv("MOONTIDE_STORE_NVME", "256MiB")
    node = store_daemon()
    with client_of(node) as client:
        write_blocks(client, TOKENS)
        wait_flushed(node, NUM_BLOCKS)
    monkeypatch.delenv("MOONTIDE_STORE_NVME")
    for _ in range(2):
        node.restart()
        assert "nvme" not in admin_of(node).stats()["tiers"]
        admin_of(node).post("/v1/floor", {"namespace": DIGEST})
    monkeypatch.setenv("MOONTIDE_STORE_NVME", "256MiB")
    node.restart()
    assert "nvme" in admin_of(node).stats()["tiers"]
    with client_of(node) as client, client.kv(NAMESPACE) as store:
        assert hits(store, TOKENS) == 0


def test_a_store_that_cannot_read_the_floors_does_not_say_that_they_are_in_force(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster"
    node = store_daemon("--cluster", f"file:{cluster}")
    with local_client(node.socket) as raw:
        floors = cluster / "floors"
        floors.rename(cluster / "kept")
        floors.mkdir()  # what cannot be read
        answer = raw.call(wire.ReadFloors()).message
        assert isinstance(answer, wire.Failure)
        assert answer.code == StoreUnavailable.code
        floors.rmdir()
        (cluster / "kept").rename(floors)
        assert raw.call(wire.ReadFloors()).message == wire.Ok()


def test_a_tenant_or_a_revision_is_dropped_by_its_name(store_daemon: StartStore) -> None:
    node = store_daemon()
    admin = admin_of(node)
    salted = dataclasses.replace(NAMESPACE, salt="tenant-a")
    with client_of(node) as client, client.kv(NAMESPACE), client.kv(salted):
        told = admin.post("/v1/floor", {"salt": "tenant-a"})
        assert list(told["floors"]) == [salted.digest.hex()]
        told = admin.post("/v1/floor", {"weights_id": NAMESPACE.weights_id})
        assert told["floors"] == {DIGEST: 1, salted.digest.hex(): 2}
        assert admin.call("POST", "/v1/floor", {"salt": "nobody"}).status == 404
        for wrong in ({}, {"salt": "a", "weights_id": "b"}, {"namespace": ""}):
            assert admin.call("POST", "/v1/floor", wrong).status == 400
    assert "tenant-a" not in node.log.read_text()


@pytest.fixture
def nodes(store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    return start_nodes(store_daemon, tmp_path, 2, "--dram", "32MiB", "--segment", "4MiB")


def admins(nodes: list[StoreProcess]) -> list[Admin]:
    return [admin_of(node) for node in nodes]


def lookups(node: StoreProcess) -> int:
    """Of blocks, that it was asked for."""
    count: int = admin_of(node).stats()["requests"].get("LookupBlocks", 0)
    return count


def test_r31_a_floor_raised_at_one_node_holds_at_the_other_and_between_them(
    nodes: list[StoreProcess],
) -> None:
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        write_blocks(there, TOKENS)
        with here.kv(NAMESPACE) as first, there.kv(NAMESPACE) as second:
            wait_until(lambda: hits(first, TOKENS) == len(TOKENS))
            told = admin_of(nodes[0]).post("/v1/floor", {"namespace": DIGEST})
            assert told["in_force"] == ["node-a", "node-b"]
            assert (hits(first, TOKENS), hits(second, TOKENS)) == (0, 0)


def test_r31_what_another_node_offers_by_the_old_floor_is_not_taken(
    nodes: list[StoreProcess], tmp_path: Path
) -> None:
    """A look-up asks a node that stands still; the floor is raised, then the node answers."""
    floors = tmp_path / "cluster" / "floors"
    here, there = nodes
    beside = prompt(1, seed=9)
    with client_of(there) as client:
        write_blocks(client, TOKENS)
        write_blocks(client, beside)
    with client_of(here) as client, client.kv(NAMESPACE) as store, ThreadPoolExecutor() as threads:
        wait_until(lambda: hits(store, beside) == len(beside))  # the events of TOKENS came before
        asked = lookups(here)
        there.signal(signal.SIGSTOP)
        asking = threads.submit(store.lookup, TOKENS, pin_s=60.0)  # what is held is brought
        wait_until(lambda: lookups(here) > asked)
        raising = threads.submit(admin_of(here).post, "/v1/floor", {"namespace": DIGEST})
        wait_until(lambda: DIGEST in json.loads(floors.read_bytes())["floors"])
        there.signal(signal.SIGCONT)
        raising.result()
        asking.result()
        wait_until(lambda: not admin_of(here).stats()["peers"]["filling"])
        assert hits(store, TOKENS) == 0


def test_r31_a_node_that_was_away_takes_the_floor_up_before_it_serves(
    nodes: list[StoreProcess],
) -> None:
    with client_of(nodes[1]) as client:
        write_blocks(client, TOKENS)
    nodes[1].kill()
    told = admin_of(nodes[0]).post("/v1/floor", {"namespace": DIGEST})
    assert "node-b" not in told["in_force"]
    nodes[1].start()
    told = admin_of(nodes[1]).post("/v1/floor", {"namespace": DIGEST})
    assert told["floors"] == {DIGEST: 2}  # one above what the other raised


def test_who_knows_of_a_higher_floor_is_not_answered_from_below_it(
    store_daemon: StartStore,
) -> None:
    """As one store asks another that has not read the membership yet."""
    node = store_daemon()
    with client_of(node) as client, local_client(node.socket) as peer:
        write_blocks(client, TOKENS)
        with client.kv(NAMESPACE) as store:
            keys = b"".join(store.keys(TOKENS))
        number = peer.call(namespace_message(NAMESPACE)).message.namespace
        shards = [shard.pack() for shard in NAMESPACE.layout.whole()]

        def ask(floor: int) -> Any:
            message = wire.LookupBlocks(number, keys, shards, local_only=True, floor=floor)
            return peer.call(message).message

        assert len(ask(0).blocks) == NUM_BLOCKS
        assert ask(1).code == "busy"
        admin_of(node).post("/v1/floor", {"namespace": DIGEST})
        assert ask(1).blocks == []
        assert peer.call(wire.ReadFloors()).message == wire.Ok()


def test_floors_that_a_wiped_membership_lost_are_written_back(
    nodes: list[StoreProcess], tmp_path: Path
) -> None:
    admin_of(nodes[0]).post("/v1/floor", {"namespace": DIGEST})
    floors = tmp_path / "cluster" / "floors"
    floors.unlink()
    wait_until(lambda: floors.exists() and json.loads(floors.read_bytes())["floors"][DIGEST] == 1)


def test_a_name_among_the_floors_that_no_store_wrote_hurts_none(
    nodes: list[StoreProcess], tmp_path: Path
) -> None:
    floors = tmp_path / "cluster" / "floors"
    admin_of(nodes[0]).post("/v1/floor", {"namespace": DIGEST})
    record = json.loads(floors.read_bytes())
    record["floors"] = {"zz": 1, "AB": 1, "": 1, **record["floors"]}
    floors.write_bytes(json.dumps(record).encode())
    nodes[1].kill()
    nodes[1].start()
    with client_of(nodes[0]) as client:
        client.clear()
    assert "floors_watch_failed" not in nodes[0].log.read_text() + nodes[1].log.read_text()


def test_a_record_that_cannot_be_read_keeps_the_store_from_starting(
    store_daemon: StartStore,
) -> None:
    node = store_daemon()
    admin_of(node).post("/v1/floor", {"namespace": DIGEST})
    node.kill()
    (node.data_dir / "floors.json").write_bytes(b"{")
    with pytest.raises(AssertionError, match=r"floors\.json"):
        node.start()
