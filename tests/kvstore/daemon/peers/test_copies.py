"""Copies and moves that an operator asks for, and what a drain leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from moontide.kvstore import StoreClient, wire
from moontide.kvstore.daemon.admin import copying
from moontide.kvstore.daemon.admin.bodies import CopyRequest
from moontide.kvstore.daemon.admin.listing import Listing
from moontide.kvstore.daemon.admin_command import admin as admin_command
from moontide.kvstore.daemon.peers import Copied, Peers
from moontide.kvstore.daemon.peers.copies import PeerCopies
from moontide.kvstore.index import PrefixIndex
from moontide.kvstore.keys import block_keys, string_entry_id
from moontide.kvstore.membership import MemoryMembership
from moontide.kvstore.service import HostPort, bind_listener

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import client_of
from ...store.conftest import MakeNode
from ...store.conftest import make_node as make_node
from ..raw_client import local_client
from ..warm import NAMESPACE as WARM
from ..warm import admin_of, hits, prompt, read_blocks, uses_of, wait_flushed, write_blocks
from .test_changes import roster_of

KEYS: Iterator[str] = (f"copied {number}" for number in itertools.count())
LONG = prompt(150)


@pytest.fixture
def clients(nodes: list[StoreProcess]) -> Iterator[tuple[StoreClient, StoreClient]]:
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        here.clear()
        yield here, there


def lies_at(node: StoreProcess, key: str) -> bool:
    with local_client(node.socket) as raw:
        message = wire.Exists([string_entry_id(key)], local_only=True)
        return bool(raw.call(message).message.found[0])


def _ask(node: StoreProcess, act: str, **body: Any) -> dict[str, Any]:
    return admin_of(node).post(f"/v1/{act}", {"to": "node-b"} | body)


def test_a_copy_is_at_both_and_a_move_only_there(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    here, _ = clients
    copied, moved, other = next(KEYS), next(KEYS), next(KEYS)
    value = bytes(range(256)) * 500
    here.put_many([(key, value) for key in (copied, moved, other)])
    assert _ask(nodes[0], "move", keys=[f"s:{moved.replace(' ', '%20')}"], dry_run=True) == {
        "dry_run": True,
        "nodes": {},
        "num_bytes": len(value),
        "ended_here": 0,
        "left": 1,
        "reason": "",
    }
    for act, key in (("copy", copied), ("move", moved)):
        told = _ask(nodes[0], act, keys=[f"s:{key.replace(' ', '%20')}"])
        assert (told["nodes"], told["left"]) == ({"node-b": 1}, 0)
        assert told["ended_here"] == (act == "move")
    assert [lies_at(nodes[0], key) for key in (copied, moved, other)] == [True, False, True]
    assert [lies_at(nodes[1], key) for key in (copied, moved, other)] == [True, True, False]
    explained = admin_of(nodes[0]).get(f"/v1/explain?key=s:{moved.replace(' ', '%20')}")
    assert explained["reason"] == "moved to another node by an operator"
    wait_until(lambda: here.get(moved) == value)  # from there


def test_a_move_takes_a_soft_pin_along_and_leaves_what_an_operator_pinned(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    here, _ = clients
    soft, plain, pinned = (next(KEYS).replace(" ", "-") for _ in range(3))
    here.put(soft, b"value", soft_pin=True)
    here.put_many([(key, b"value") for key in (plain, pinned)])
    pin = admin_of(nodes[0]).post("/v1/pin", {"keys": [f"s:{pinned}"], "ttl_s": 60})["pin"]
    told = _ask(nodes[0], "move", key_prefix="s:")
    assert (told["nodes"], told["ended_here"], told["left"]) == ({"node-b": 3}, 2, 1)
    assert "unpin" in told["reason"]
    assert [lies_at(nodes[0], key) for key in (soft, plain, pinned)] == [False, False, True]
    with local_client(nodes[1].socket) as raw:
        entries = [string_entry_id(key) for key in (soft, plain, pinned)]
        found = raw.call(wire.Lookup(entries, local_only=True)).message
        assert isinstance(found, wire.LookupReply)
        assert found.soft_pins == b"\1\0\0"
    admin_of(nodes[0]).post("/v1/unpin", {"pin": pin})
    assert _ask(nodes[0], "move", key_prefix="s:")["ended_here"] == 1


def test_what_a_copy_looks_at_is_no_use_of_it(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    """The other store's look-up is one, and it asks for what it lacks: the second time nothing."""
    here, _ = clients
    keys = [next(KEYS) for _ in range(20)]
    here.put_many([(key, b"value") for key in keys])
    first = _ask(nodes[0], "copy", key_prefix="s:")
    uses = uses_of(here)
    second = _ask(nodes[0], "copy", key_prefix="s:")
    assert first["nodes"] == second["nodes"] == {"node-b": len(keys)}
    assert uses_of(here) == uses


def test_blocks_move_with_their_chain(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    here, there = clients
    write_blocks(here, LONG)
    told = _ask(nodes[0], "move", namespace=WARM.digest.hex())
    assert (told["nodes"], told["ended_here"], told["left"]) == ({"node-b": 150}, 150, 0)
    assert here.stats()["tiers"]["dram"]["entries"] == 0
    key = block_keys(WARM, LONG)[7].hex()
    assert "moved" in admin_of(nodes[0]).get(f"/v1/explain?key=kv:{key}")["reason"]
    with there.kv(WARM) as kv:
        assert kv.lookup(LONG).num_tokens == len(LONG)
    expected = read_blocks(there, LONG)
    there.clear(nodes="this")
    assert read_blocks(here, LONG) == []
    write_blocks(here, LONG)
    assert read_blocks(here, LONG) == expected


def test_another_value_under_the_key_is_no_copy(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    here, there = clients
    key = next(KEYS)
    here.put(key, b"mine")
    there.put(key, b"yours")
    told = _ask(nodes[0], "move", key_prefix="s:", seconds=0.5)
    assert (told["nodes"], told["ended_here"], told["left"]) == ({"node-b": 0}, 0, 1)
    assert "another value" in told["reason"]
    assert here.get(key) == b"mine"


def test_a_change_during_a_move_wins(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    here, there = clients
    keys = [next(KEYS) for _ in range(8)]
    here.put_many([(key, b"0") for key in keys])
    over = threading.Event()

    def move() -> None:
        for node, to in itertools.cycle([(nodes[0], "node-b"), (nodes[1], "node-a")]):
            if over.is_set():
                return
            admin_of(node).post("/v1/move", {"to": to, "key_prefix": "s:", "seconds": 5})

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for number in range(1, 6):
            for key in keys[1:]:
                here.put(key, b"%d" % number, if_exists="replace")
        here.remove(keys[0])
    finally:
        over.set()
        mover.join()
    for client in (here, there):
        found = client.get_many(keys)
        assert found == [None] + [b"5"] * (len(keys) - 1)


def test_what_is_beyond_the_bound_of_one_request_is_left(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_COPIED", 4)
    node = make_node()
    owner = node.connect()
    for number in range(6):
        node.put(owner, f"{number}", b"12")
    with bind_listener(HostPort("127.0.0.1", 0)) as listener:
        peers = Peers(
            node.store,
            MemoryMembership(time.monotonic),
            token="token",
            listener=listener,
            copies="keep",
        )
        routes = copying.CopyRoutes(Listing(node.store, None), peers, None, set)
        call: Any = SimpleNamespace(body=CopyRequest(dry_run=True))
        told = asyncio.run(routes.routes()[0].handler(call))
        assert (told.left, told.num_bytes) == (6, 8)

        async def drain() -> Copied:
            async with roster_of(node.store, MemoryMembership(time.monotonic)) as roster:
                peers.copies = PeerCopies(node.store, roster, PrefixIndex(), lambda _: 0)
                return await routes.spread_hot(None, 1.0)

        assert asyncio.run(drain()).left == 6


def test_what_cannot_be_meant_is_refused(
    nodes: list[StoreProcess], store_daemon: StartStore
) -> None:
    refused = admin_of(nodes[0]).call("POST", "/v1/copy", {"to": "nowhere"})
    assert (refused.status, "node-b" in refused.body["error"]["message"]) == (400, True)
    assert admin_of(nodes[0]).call("POST", "/v1/drain", {"to": "nowhere"}).status == 400
    assert admin_of(nodes[0]).stats()["draining"] is False
    alone = admin_of(store_daemon()).call("POST", "/v1/move", {})
    assert (alone.status, "no peers" in alone.body["error"]["message"]) == (400, True)


def test_after_a_drain_and_a_stop_reads_go_on(store_daemon: StartStore, tmp_path: Path) -> None:
    """What only the drained node had, strings and blocks, is with the other one."""
    leaving, staying = start_nodes(store_daemon, tmp_path, 2, "--nvme", "64MiB")
    tokens = prompt(20)
    with client_of(leaving) as client:
        client.put_many([("a", b"1" * 100_000), ("b", b"2")])
        write_blocks(client, tokens)
        expected = read_blocks(client, tokens)
        where = ("--url", leaving.admin, "--token-file", str(leaving.token_file), "--json")
        done = CliRunner().invoke(admin_command, ["drain", *where], catch_exceptions=False)
        told = json.loads(done.stdout)
        assert (told["flushed"], told["copied"], told["left"]) == (True, 22, 0)
        assert client.stats()["peers"]["copied_entries"] == 22
        assert client.get("b") == b"2"  # reads go on here, too
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    with client_of(staying) as client, client.kv(WARM) as kv:
        assert client.get_many(["a", "b"]) == [b"1" * 100_000, b"2"]
        assert hits(kv, tokens) == len(tokens)
        assert read_blocks(client, tokens) == expected


def test_what_lies_only_on_disk_moves_too(store_daemon: StartStore, tmp_path: Path) -> None:
    nodes = start_nodes(store_daemon, tmp_path, 2, "--nvme", "64MiB")
    with client_of(nodes[0]) as client:
        client.put("cold", b"c" * 5000)
        write_blocks(client, prompt(5))
        wait_flushed(nodes[0], 6)
        admin_of(nodes[0]).post("/v1/evict", {"tier": "dram"})
        told = admin_of(nodes[0]).post("/v1/move", {"to": "node-b"})
        assert (told["nodes"], told["left"]) == ({"node-b": 6}, 0)
        wait_until(lambda: client.stats()["tiers"]["nvme"]["entries"] == 0)
        wait_until(lambda: client.get("cold") == b"c" * 5000)


def test_a_store_that_keeps_no_blocks_of_others_takes_none(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """A move would end them here while nothing stays there. String entries are kept."""
    nodes = start_nodes(store_daemon, tmp_path, 2, "--remote-copies", "drop")
    with client_of(nodes[0]) as here:
        here.put("string", b"value")
        write_blocks(here, prompt(3))
        for to in ("node-b", None):
            told = _ask(nodes[0], "move", to=to, namespace=WARM.digest.hex())
            assert (told["nodes"], told["ended_here"], told["left"]) == ({}, 0, 3)
            assert "--remote-copies keep" in told["reason"]
        told = _ask(nodes[0], "move")
        assert (told["nodes"], told["ended_here"], told["left"]) == ({"node-b": 1}, 1, 3)
        assert here.stats()["tiers"]["dram"]["entries"] == 3
        assert here.stats()["peers"]["copies_left"] == 0


def test_copies_let_what_readers_wait_for_go_first(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    """They are prefetched, by nobody who waits."""
    here, there = clients
    before = there.stats()["requests"]
    here.put(next(KEYS), b"value")
    write_blocks(here, prompt(3))
    assert _ask(nodes[0], "copy")["nodes"] == {"node-b": 4}
    after = there.stats()["requests"]
    for name in ("Prefetch", "PrefetchBlocks"):
        assert after.get(name, 0) > before.get(name, 0), name


def test_a_key_that_an_operator_removes_is_gone_everywhere(
    nodes: list[StoreProcess], clients: tuple[StoreClient, StoreClient]
) -> None:
    """Asked of the node that does not have it, too."""
    here, there = clients
    for asked in nodes:
        key = f"removed-{asked.instance[:6]}"
        here.put(key, b"v" * 1000)
        wait_until(lambda key=key: there.get(key) is not None)
        if asked is nodes[1]:
            there.clear(nodes="this")
        assert admin_of(asked).call("DELETE", f"/v1/blocks/s:{key}").body == {"removed": 1}
        assert here.get(key) is there.get(key) is None
        assert admin_of(asked).call("DELETE", f"/v1/blocks/s:{key}").body == {"removed": 0}
