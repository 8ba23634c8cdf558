"""Replicas that went with their node are made again."""

from __future__ import annotations

import signal
from pathlib import Path

from moontide.kvstore.daemon.peers.changes import home_of
from moontide.kvstore.daemon.peers.repair import MAX_WANTED, WantedReplicas
from moontide.kvstore.keys import EntryId, string_entry_id

from ....store_process import StartStore, start_nodes
from ....waiting import wait_until
from ...client.helpers import client_of
from .test_copies import lies_at

NODES = ["a", "b", "c"]
ENTRIES = [string_entry_id(f"{number}") for number in range(200)]


def _missing(wanted: WantedReplicas, holders: set[str], node: str) -> list[EntryId]:
    there = {entry: set(holders) for entry in ENTRIES}
    return wanted.missing(there, home_of, node)


def test_of_those_left_one_sees_to_each_entry() -> None:
    wanted = WantedReplicas()
    wanted.want(ENTRIES, 3)
    assert _missing(wanted, {"a", "b", "c"}, "a") == []
    shares = [_missing(wanted, {"a", "b"}, node) for node in ("a", "b")]
    assert sorted(shares[0] + shares[1]) == sorted(ENTRIES)
    assert all(shares)
    assert len(_missing(wanted, {"a"}, "a")) == 2 * len(ENTRIES)


def test_what_was_changed_or_never_had_replicas_is_left_alone() -> None:
    wanted = WantedReplicas()
    wanted.want(ENTRIES[:10], 2)
    wanted.forget(ENTRIES[5:])
    assert sorted(_missing(wanted, {"a"}, "a")) == sorted(ENTRIES[:5])


def test_the_oldest_go_beyond_the_bound() -> None:
    wanted = WantedReplicas()
    wanted.want((EntryId(b"s%d" % number) for number in range(MAX_WANTED + 5)), 2)
    assert len(wanted) == MAX_WANTED
    assert wanted.entries()[0] == EntryId(b"s5")


def test_replicas_of_a_lost_node_are_made_at_another(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """Also when the one that is lost is the one that they were put at; and again, by whoever has
    them then, when one leaves."""
    nodes = start_nodes(store_daemon, tmp_path, 3, "--dram", "32MiB", "--segment", "4MiB")
    keys = [f"key {number}" for number in range(20)]
    with client_of(nodes[0]) as client:
        results = client.put_many([(key, key.encode() * 100) for key in keys], replicas=2)
        assert {result.status.name for result in results} == {"STORED"}
        client.put("single", b"one")
        assert client.remove(keys.pop())
    nodes[0].kill()
    wait_until(lambda: all(lies_at(node, key) for node in nodes[1:] for key in keys), seconds=30.0)
    assert not any(lies_at(node, "single") for node in nodes[1:])
    with client_of(nodes[1]) as client, client_of(nodes[2]) as other:

        def repaired() -> int:
            return sum(each.stats()["peers"]["repaired_entries"] for each in (client, other))

        wait_until(lambda: repaired() == len(keys))  # counted once it was looked at again
        assert client.get_many(keys) == [key.encode() * 100 for key in keys]
    nodes[0].start()
    nodes[1].signal(signal.SIGTERM)  # the third saw to none of those that it has from here
    assert nodes[1].wait() == 0
    left = (nodes[0], nodes[2])
    wait_until(lambda: all(lies_at(node, key) for node in left for key in keys), seconds=30.0)
