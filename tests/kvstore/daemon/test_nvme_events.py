"""R38 with a disk: whoever follows the events knows what lies in each tier, whatever happened."""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

from moontide.kvstore import StoreClient

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .warm import admin_of, check_at_rest, client_of, prompt, read_blocks, write_blocks

Held = set[tuple[str, str, str]]
"""(tier, namespace, entry id) in hex."""
ROUNDS = 12
SEED = 38


class Follower:
    """Applies a store's events on a thread, from the snapshot on."""

    def __init__(self, node: StoreProcess) -> None:
        self.held: Held = set()
        self.seq = -1
        request = urllib.request.Request(
            node.admin + "/v1/events", headers={"Authorization": f"Bearer {node.token}"}
        )
        self._stream = urllib.request.urlopen(request, timeout=30)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        kind = ""
        for raw in self._stream:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                self._apply(kind, json.loads(line[6:]))

    def _apply(self, kind: str, event: Any) -> None:
        if kind == "kv":
            tier, namespace = event["tier"], event.get("namespace", "")
            named = {(tier, namespace, entry) for entry in event.get("entries", ())}
            if event["kind"] == "stored":
                self.held |= named
            elif event["kind"] == "removed":
                self.held -= named
            else:
                self.held = {
                    held
                    for held in self.held
                    if held[0] != tier or (namespace and held[1] != namespace)
                }
        if kind in ("kv", "live"):
            self.seq = event["seq"]


def listed(node: StoreProcess) -> Held:
    held: Held = set()
    for entry in _pages(node):
        if entry["namespace"]:
            entry_id = b"k".hex() + entry["key"].removeprefix("kv:") + entry["shard"]
        else:
            entry_id = b"s".hex() + entry["key"].removeprefix("s:").encode().hex()
        held.add((entry["tier"], entry["namespace"], entry_id))
    return held


def _pages(node: StoreProcess) -> Iterator[Any]:
    cursor = ""
    while True:
        page = admin_of(node).get(f"/v1/blocks?limit=1000&cursor={cursor}")
        yield from page["entries"]
        cursor = page["cursor"]
        if not cursor:
            return


def churn(client: StoreClient, node: StoreProcess, rng: random.Random) -> None:
    """More than either tier holds, and every way an entry can go."""
    admin = admin_of(node)
    for number in range(ROUNDS):
        names = [f"{number}-{index}" for index in range(40)]
        client.put_many([(name, rng.randbytes(60_000)) for name in names])
        client.put(names[0], b"new", if_exists="replace")
        client.put(f"{number}-short", b"x", ttl_s=0.05)
        client.remove_many(rng.sample(names, 5))
        write_blocks(client, prompt(6, seed=number))
        client.get_many([f"{rng.randrange(number + 1)}-{rng.randrange(40)}" for _ in range(10)])
        read_blocks(client, prompt(6, seed=rng.randrange(number + 1)))
        if number % 4 == 1:
            admin.post("/v1/evict", {"tier": rng.choice(["dram", "nvme"]), "bytes": 500_000})
        if number == ROUNDS // 2:
            admin.post("/v1/clear", {"namespace": ""})


def test_r38_events_tell_what_lies_in_each_tier_after_churn(store_daemon: StartStore) -> None:
    flags = ("--dram", "8MiB", "--segment", "1MiB", "--nvme", "8MiB", "--nvme-region", "1MiB")
    node = store_daemon(*flags)
    early = Follower(node)
    with client_of(node) as client:
        churn(client, node, random.Random(SEED))

    def agrees(follower: Follower) -> bool:
        return follower.seq == admin_of(node).stats()["events_seq"] and follower.held == listed(
            node
        )

    wait_until(lambda: agrees(early), seconds=10.0)
    late = Follower(node)  # its snapshot lists both tiers
    wait_until(lambda: agrees(late), seconds=10.0)
    tiers = admin_of(node).stats()["tiers"]
    assert min(tiers[tier]["evictions"] for tier in ("dram", "nvme")) > 0, "too little churn"
    assert tiers["nvme"]["used_bytes"] <= 1.05 * tiers["nvme"]["capacity_bytes"]
    assert {held[0] for held in late.held} == {"dram", "nvme"}
    check_at_rest(node)
