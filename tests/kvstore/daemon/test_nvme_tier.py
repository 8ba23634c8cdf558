"""A store daemon with a disk: what survives it, in which state it comes back, what is told."""

from __future__ import annotations

import hashlib
import random
import signal
import time

import pytest

from moontide.kvstore import StoreClient, connect
from moontide.kvstore.types import PutStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from .warm import (
    NVME,
    admin_of,
    blocks_digest,
    check_at_rest,
    client_of,
    prompt,
    put_all,
    read_blocks,
    values,
    wait_flushed,
    write_blocks,
)

RESTARTS = 2
FULL_TIER = ("--nvme", "40MiB", "--nvme-region", "4MiB")
FULL_TIER_REGION_RATIO = 1 / 8
"""What one region holds of it at most, the index aside."""
FULL_TIER_ROUNDS = 20
"""Until regions are written over older ones."""
LEAST_SHARE = 0.5
"""Of what is put: a slow disk does not get more before DRAM needs the room."""
KILL_ROUNDS = [3, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(900)])]
NUM_BLOCKS = 150
"""More than one batch of promotion reads."""


def get_in_parts(client: StoreClient, names: list[str]) -> list[bytes | None]:
    """All at once, they need not fit into DRAM."""
    parts = [names[start : start + 100] for start in range(0, len(names), 100)]
    return [value for part in parts for value in client.get_many(part)]


def put_and_watch(node: StoreProcess, entries: dict[str, bytes], *, share: float) -> dict[str, int]:
    """What the NVMe tier tells when it has taken that share of the entries' bytes."""
    admin = admin_of(node)
    tier = admin.stats()["tiers"]["nvme"]
    enough = tier["bytes_in"] + share * sum(map(len, entries.values()))
    with client_of(node) as client:
        put_all(client, entries)
        while tier["bytes_in"] < enough:
            tier = admin.stats()["tiers"]["nvme"]
        return tier


def digests(client: StoreClient, names: list[str]) -> list[str]:
    return [hashlib.sha256(client.get(name) or b"").hexdigest() for name in names]


def test_r2_a_warm_disk_gives_the_same_bytes_after_every_restart(store_daemon: StartStore) -> None:
    node, entries, tokens = store_daemon(*NVME), values(300), prompt(NUM_BLOCKS)
    with client_of(node) as client:
        put_all(client, entries)
        write_blocks(client, tokens)
        before = digests(client, list(entries)), blocks_digest(client, tokens)
    wait_flushed(node, len(entries) + NUM_BLOCKS)
    for _ in range(RESTARTS):
        node.restart()
        with client_of(node) as client:
            after = digests(client, list(entries)), blocks_digest(client, tokens)
            assert after == before
        stats = admin_of(node).stats()
        assert stats["tiers"]["nvme"]["hits"] == len(entries) + NUM_BLOCKS
        assert stats["transports"]["file"]["bytes_in"] >= sum(map(len, entries.values()))
        check_at_rest(node)


def test_r48_recovery_evicts_nothing_and_leaves_room_for_the_largest_entry(
    store_daemon: StartStore,
) -> None:
    node, entries, largest = store_daemon(*NVME), values(300), bytes(4 << 20)
    with client_of(node) as client:
        put_all(client, entries)
    wait_flushed(node, len(entries))
    node.restart()
    tiers = admin_of(node).stats()["tiers"]
    assert tiers["nvme"]["entries"] == len(entries)
    assert (tiers["dram"]["used_bytes"], tiers["dram"]["largest_free_bytes"]) == (0, len(largest))
    with client_of(node) as client:
        assert client.put("largest", largest).status is PutStatus.STORED
        assert client.get_many(list(entries)) == list(entries.values())
    tiers = admin_of(node).stats()["tiers"]
    assert (tiers["dram"]["evictions"], tiers["nvme"]["evictions"]) == (0, 0)
    check_at_rest(node)


@pytest.mark.parametrize("rounds", KILL_ROUNDS)
def test_r44_what_was_reported_flushed_survives_kills_at_random_moments(
    store_daemon: StartStore, rounds: int
) -> None:
    """Each round adds entries to those of the rounds before, and is killed while they are written
    to disk."""
    seed = 44
    rng = random.Random(seed)
    node, entries = store_daemon(*NVME), {}
    for number in range(rounds):
        new = values(400, seed=100 * seed + number, largest=100_000)
        entries.update(new)
        admin = admin_of(node)
        before = flushed = admin.stats()["tiers"]["nvme"]["flushed"]
        with client_of(node) as client:
            put_all(client, new)
            deadline = time.monotonic() + rng.uniform(0.0, 0.15)
            while flushed == before or time.monotonic() < deadline:
                flushed = admin.stats()["tiers"]["nvme"]["flushed"]
            node.kill()
        node.start()
        with client_of(node) as client:
            found = get_in_parts(client, list(entries))
        assert all(got in (None, value) for got, value in zip(found, entries.values(), strict=True))
        hits = len(found) - found.count(None)
        assert hits >= 0.95 * flushed, f"seed {seed}, {number}: {hits} hits of {flushed} flushed"
        check_at_rest(node)


@pytest.mark.parametrize("rounds", KILL_ROUNDS)
def test_r44_kills_of_a_full_tier_cost_no_more_than_the_regions_that_go(
    store_daemon: StartStore, rounds: int
) -> None:
    """Each round is killed while regions are written over older ones; what lies on disk then is
    whole, and most of what was reported."""
    rng = random.Random(441)
    node, entries = store_daemon("--dram", "16MiB", *FULL_TIER), {}
    evictions = 0
    for number in range(FULL_TIER_ROUNDS + rounds):
        new = values(200, seed=4410 + number, largest=100_000)
        entries.update(new)
        if number < FULL_TIER_ROUNDS:
            put_and_watch(node, new, share=LEAST_SHARE)
            continue
        tier = put_and_watch(node, new, share=rng.uniform(0.0, LEAST_SHARE))
        node.kill()
        evictions += tier["evictions"]
        node.start()
        there = admin_of(node).stats()["tiers"]["nvme"]["entries"]
        assert there >= (1 - 2 * FULL_TIER_REGION_RATIO) * tier["flushed"]
        with client_of(node) as client:
            found = get_in_parts(client, list(entries))
        assert all(got in (None, value) for got, value in zip(found, entries.values(), strict=True))
        assert len(found) - found.count(None) == there
        check_at_rest(node)
    assert evictions


def test_r45_foreign_files_are_left_alone_and_reported(store_daemon: StartStore) -> None:
    node = store_daemon(*NVME)
    assert admin_of(node).stats()["nvme"]["foreign_files"] == []
    node.kill()
    foreign = node.data_dir / "nvme/notes.txt"
    foreign.write_text("mine")
    node.start()
    assert admin_of(node).stats()["nvme"]["foreign_files"] == ["notes.txt"]
    assert foreign.read_text() == "mine"


def test_r28_a_large_pool_with_pending_writes_ends_in_time_and_loses_nothing(
    store_daemon: StartStore,
) -> None:
    node = store_daemon(*NVME, "--dram", "128MiB")
    entries = {f"big/{index}": random.Random(index).randbytes(1 << 20) for index in range(48)}
    with client_of(node) as client:
        put_all(client, entries)
    with within(10.0):
        node.signal(signal.SIGTERM)
        assert node.wait() == 0
    node.start()
    with client_of(node) as client:
        for name, value in entries.items():
            assert client.get(name) == value, name
    check_at_rest(node)


def test_what_was_ended_never_comes_back(store_daemon: StartStore) -> None:
    """Removed, replaced, cleared: each is answered once a crash cannot undo it."""
    node, tokens = store_daemon(*NVME), prompt(3)
    with client_of(node) as client:
        put_all(client, {"removed": b"1", "replaced": b"old", "kept": b"3", "gone": b"4"})
        write_blocks(client, tokens)
        wait_flushed(node, 7)
        assert client.remove("removed")
        assert client.put("replaced", b"new", if_exists="replace").status is PutStatus.STORED
        admin = admin_of(node)
        assert admin.call("DELETE", "/v1/blocks/s:gone").body == {"removed": 1}
        namespace = admin.get("/v1/blocks?tier=nvme&key_prefix=kv:")["entries"][0]["namespace"]
        assert admin.post("/v1/clear", {"namespace": namespace})["entries"] == 3
    node.restart()
    with client_of(node) as client:
        assert client.get_many(["removed", "gone", "kept"]) == [None, None, b"3"]
        assert client.get("replaced") in (None, b"new")
        assert read_blocks(client, tokens) == []


def test_strings_on_disk_are_there_for_every_question(store_daemon: StartStore) -> None:
    node = store_daemon(*NVME)
    with client_of(node) as client:
        put_all(client, {"a": b"first", "b": b"second", "empty": b""})
        wait_flushed(node, 3)
    node.restart()
    with client_of(node) as client:
        assert client.exists_many(["a", "nothing"]) == [True, False]
        assert client.put("a", b"other").status is PutStatus.EXISTS
        assert client.size("b") == 6
        assert client.get_many(["a", "nothing", "b", "empty"]) == [b"first", None, b"second", b""]
        assert client.remove_many(["a", "nothing"]) == 1
        assert client.get("a") is None


def test_each_tier_is_shown_and_evicted_by_itself(store_daemon: StartStore) -> None:
    node = store_daemon(*NVME)
    admin = admin_of(node)

    def tiers_of(name: str) -> list[str]:
        status, body = admin.call("GET", f"/v1/blocks/s:{name}")
        return [entry["tier"] for entry in body["entries"]] if status == 200 else []

    with client_of(node) as client:
        put_all(client, {"x": bytes(1000), "y": bytes(2000)})
        wait_until(lambda: tiers_of("x") == tiers_of("y") == ["dram", "nvme"])
        evicted = admin.post("/v1/evict", {"tier": "dram", "keys": ["s:x"]})["tiers"]
        assert list(evicted) == ["dram"]
        assert tiers_of("x") == ["nvme"]
        assert "1 in nvme" in admin.get("/v1/explain?key=s:x")["reason"]
        evicted = admin.post("/v1/evict", {"tier": "nvme", "keys": ["s:y"]})["tiers"]
        assert evicted["nvme"]["entries"] == 1
        assert tiers_of("y") == ["dram"]
        listed = admin.get("/v1/blocks?tier=nvme")["entries"]
        assert [(entry["key"], entry["num_bytes"]) for entry in listed] == [("s:x", 1000)]
        assert client.get("x") == bytes(1000)  # comes back from disk
        assert tiers_of("x") == ["dram", "nvme"]
        assert admin.post("/v1/evict", {"keys": ["s:x"]})["tiers"].keys() == {"dram", "nvme"}
        assert client.get("x") is None
        status, body = admin.call("POST", "/v1/evict", {"tier": "nvme", "older_than_s": 1})
        assert status == 400
        assert "dram only" in body["error"]["message"]


def test_dram_smaller_than_the_working_set_is_backed_by_the_disk(store_daemon: StartStore) -> None:
    """Entries that DRAM had to let go come back from disk, byte for byte, without help."""
    node = store_daemon(*NVME, "--dram", "8MiB", "--segment", "1MiB")
    entries = {f"w/{index}": random.Random(index).randbytes(100_000) for index in range(200)}
    admin = admin_of(node)
    with client_of(node) as client:
        for start in range(0, 200, 20):
            part = dict(list(entries.items())[start : start + 20])
            put_all(client, part)
            wait_flushed(node, start + 20)
        assert admin.stats()["tiers"]["dram"]["evictions"] > 0
        for name, value in entries.items():
            assert client.get(name) == value, name
    check_at_rest(node)


@pytest.mark.parametrize("by", ["shared memory", "tcp"])
def test_more_than_dram_holds_is_read_in_one_call(store_daemon: StartStore, by: str) -> None:
    node = store_daemon(*NVME, "--dram", "8MiB", "--segment", "1MiB")
    entries = {f"w/{index}": random.Random(index).randbytes(200_000) for index in range(120)}
    names = [*entries, "nowhere"]
    with client_of(node) as client:
        for start in range(0, 120, 20):
            put_all(client, dict(list(entries.items())[start : start + 20]))
            wait_flushed(node, start + 20)
    address = f"unix:{node.socket}" if by == "shared memory" else f"tcp://{node.listen}"
    with connect(address, token=node.token, timeout_s=20.0) as client:
        assert client.get_many(names) == [*entries.values(), None]
    check_at_rest(node)
