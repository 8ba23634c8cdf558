"""Admin REST of a real daemon: every route, with and without the token."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moontide.kvstore import wire

from ...store_process import StoreProcess
from ...waiting import wait_until
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client
from .test_protocol import KEYS, NAMESPACE, SHARD, open_namespace

ROUTES = [
    ("GET", "/v1/stats"),
    ("GET", "/v1/blocks"),
    ("GET", "/v1/blocks/s:a"),
    ("DELETE", "/v1/blocks/s:a"),
    ("GET", "/v1/explain?key=s:a"),
    ("POST", "/v1/evict"),
    ("POST", "/v1/clear"),
    ("POST", "/v1/audit"),
    ("GET", "/v1/tenants"),
    ("POST", "/v1/floor"),
    ("POST", "/v1/pin"),
    ("GET", "/v1/pins"),
    ("POST", "/v1/unpin"),
    ("POST", "/v1/copy"),
    ("POST", "/v1/move"),
    ("POST", "/v1/drain"),
    ("POST", "/v1/undrain"),
    ("GET", "/v1/config"),
    ("PATCH", "/v1/config"),
    ("GET", "/v1/events"),
]


@pytest.fixture
def client(daemon: StoreProcess, admin: Admin) -> Iterator[RawClient]:
    with local_client(daemon.socket) as opened:
        yield opened
    admin.post("/v1/clear")


def store_blocks(client: RawClient) -> None:
    """Two blocks of two layers."""
    namespace = open_namespace(client)
    keys = b"".join(KEYS)
    results = client.call(wire.ReserveBlocks(namespace, keys, b"", [SHARD.pack()])).message.results
    slots, generations = [r[1] for r in results], [r[2] for r in results]
    for layer in range(2):
        client.call(wire.Advance(slots, generations, layer, [0] * len(slots)))
    client.call(wire.Commit(slots, generations, []))


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_r60_every_route_wants_the_token(daemon: StoreProcess, method: str, path: str) -> None:
    for token in (None, "x" * 43, daemon.token[:-1]):
        status, body = Admin(daemon.admin, token).call(method, path)
        assert status == 401
        assert body["error"]["code"] == "unauthorized"
        assert daemon.token not in str(body)


def test_r60_the_routes_tested_are_all_there_are(admin: Admin) -> None:
    document = admin.get("/openapi.json")
    told = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if operation.get("security") == [{"bearer": []}]
    }
    tested = {(m, p.partition("?")[0].replace("s:a", "{key}")) for m, p in ROUTES}
    assert told == tested


def test_r60_secrets_are_in_no_answer_and_no_log(daemon: StoreProcess, admin: Admin) -> None:
    assert daemon.token not in str(admin.get("/v1/config"))
    assert daemon.token not in str(admin.stats())
    assert daemon.token not in daemon.log.read_text()


def test_health_readiness_and_metrics_need_no_token_here(daemon: StoreProcess) -> None:
    nobody = Admin(daemon.admin, None)
    assert nobody.get("/healthz") == {"status": "ok"}
    assert nobody.get("/readyz") == {"status": "ok"}
    families = {f.name for f in text_string_to_metric_families(nobody.get("/metrics"))}
    assert {"moontide_store_capacity_bytes", "moontide_store_connections"} <= families


def test_stats_follow_what_happens(client: RawClient, admin: Admin) -> None:
    before = admin.stats()
    client.put("a", bytes(1000))
    client.get("a")
    client.get("b")
    after = admin.stats()
    tier, tier_before = after["tiers"]["dram"], before["tiers"]["dram"]
    assert tier["entries"] == tier_before["entries"] + 1
    assert tier["used_bytes"] >= tier_before["used_bytes"] + 1000
    assert tier["bytes_in"] == tier_before["bytes_in"] + 1000
    assert (tier["hits"], tier["misses"]) == (tier_before["hits"] + 1, tier_before["misses"] + 1)
    assert after["connections"] == 1
    assert after["requests"]["Put"] == before["requests"].get("Put", 0) + 1


def test_blocks_are_listed_in_pages_that_hold_each_once(client: RawClient, admin: Admin) -> None:
    for index in range(25):
        client.put(f"k/{index}", b"x")
    store_blocks(client)
    seen, cursor = [], ""
    while True:
        page = admin.get(f"/v1/blocks?limit=10&cursor={cursor}")
        seen += [entry["key"] for entry in page["entries"]]
        cursor = page["cursor"]
        if not cursor:
            break
    assert len(seen) == len(set(seen)) == 27
    digest = NAMESPACE.digest.hex()
    blocks = admin.get(f"/v1/blocks?namespace={digest}")["entries"]
    assert {entry["key"] for entry in blocks} == {f"kv:{key.hex()}" for key in KEYS}
    strings = admin.get("/v1/blocks?namespace=&key_prefix=s:k%2F1")["entries"]
    assert len(strings) == 11


@pytest.mark.parametrize("key", ["100%", "100%25", "a%2Fb", "a/b", "a?b#c", "kv:00", " ", "ü"])
def test_a_string_key_in_a_path_is_decoded_once(client: RawClient, admin: Admin, key: str) -> None:
    """As the listing shows it, or percent-encoded once more as a whole."""
    decoys = {unquote(key), quote(key, safe=""), unquote(unquote(key))} - {key}
    for each in (key, *decoys):
        client.put(each, each.encode())
    shown = f"s:{quote(key)}"
    for path in (shown, quote(shown, safe="")):
        (entry,) = admin.get(f"/v1/blocks/{path}")["entries"]
        assert (entry["key"], entry["num_bytes"]) == (shown, len(key.encode()))
    assert admin.call("DELETE", f"/v1/blocks/{shown}").body == {"removed": 1}
    assert client.get(key) is None
    assert all(client.get(decoy) == decoy.encode() for decoy in decoys)


def test_one_entry_is_shown_explained_and_removed(client: RawClient, admin: Admin) -> None:
    client.put("a b/ü", b"12345")
    path = "/v1/blocks/s:a%20b%2F%C3%BC"
    entries = admin.get(path)["entries"]
    assert [(entry["tier"], entry["num_bytes"]) for entry in entries] == [("dram", 5)]
    assert admin.get("/v1/explain?key=s:a%20b%2F%C3%BC")["state"] == "committed"
    assert admin.call("DELETE", path).body == {"removed": 1}
    assert client.get("a b/ü") is None
    assert admin.call("GET", path).status == 404
    assert admin.call("DELETE", path).body == {"removed": 0}
    assert admin.get("/v1/explain?key=s:a%20b%2F%C3%BC")["state"] in ("dropped", "unknown")


def test_a_block_is_shown_and_removed_with_all_its_shards(client: RawClient, admin: Admin) -> None:
    store_blocks(client)
    path = f"/v1/blocks/kv:{KEYS[0].hex()}"
    assert len(admin.get(path)["entries"]) == 1
    assert admin.get(f"/v1/explain?key=kv:{KEYS[0].hex()}")["state"] == "committed"
    assert admin.call("DELETE", path).body == {"removed": 1}
    assert admin.call("GET", path).status == 404


def test_evict_tells_before_it_does(client: RawClient, admin: Admin) -> None:
    for index in range(4):
        client.put(f"e{index}", bytes(5000))
    client.call(wire.Lookup([entry_id("e0")], pin_s=0))
    request = {"key_prefix": "s:e", "dry_run": True}
    told = admin.post("/v1/evict", request)["tiers"]["dram"]
    assert told["entries"] == 3  # one is pinned
    assert client.call(wire.Exists([entry_id("e1")])).message.found == b"\1"
    done = admin.post("/v1/evict", request | {"dry_run": False})
    assert done["tiers"]["dram"] == told
    exists = client.call(wire.Exists([entry_id(f"e{index}") for index in range(4)]))
    assert exists.message.found == b"\1\0\0\0"
    client.put("x", bytes(100))
    assert admin.post("/v1/evict", {"keys": ["s:x"]})["tiers"]["dram"]["entries"] == 1


def test_clear_takes_a_namespace_or_strings_or_everything(client: RawClient, admin: Admin) -> None:
    store_blocks(client)
    client.put("a", b"x")
    digest = NAMESPACE.digest.hex()
    told = admin.post("/v1/clear", {"namespace": digest, "dry_run": True})
    assert told == {"dry_run": True, "entries": 2}
    assert admin.post("/v1/clear", {"namespace": digest})["entries"] == 2
    assert client.get("a") == b"x"
    assert admin.post("/v1/clear", {"namespace": ""})["entries"] == 1
    assert client.get("a") is None
    admin.check_at_rest()


@pytest.mark.parametrize(
    ("method", "path", "body", "named"),
    [
        ("GET", "/v1/blocks?limit=0", None, "limit"),
        ("GET", "/v1/blocks?nonsense=1", None, "nonsense"),
        ("GET", "/v1/blocks?namespace=zz", None, "zz"),
        ("GET", "/v1/blocks?tier=hot", None, "tier"),
        ("GET", "/v1/blocks?cursor=nonsense", None, "nonsense"),
        ("GET", "/v1/blocks/nonsense", None, "nonsense"),
        ("GET", "/v1/explain", None, "key"),
        ("POST", "/v1/evict", {"byts": 1}, "byts"),
        ("POST", "/v1/evict", {"bytes": -1}, "bytes"),
        ("POST", "/v1/evict", {"keys": ["kv:00"]}, "kv:00"),
        ("POST", "/v1/clear", {"namespace": "ab"}, "ab"),
    ],
)
def test_bad_requests_name_what_is_wrong(
    admin: Admin, method: str, path: str, body: Any, named: str
) -> None:
    status, answer = admin.call(method, path, body)
    assert status == 400, answer
    assert named in answer["error"]["message"]


def test_config_shows_the_settings_in_force(daemon: StoreProcess, admin: Admin) -> None:
    settings = admin.get("/v1/config")["settings"]
    assert settings["dram"] == "64MiB"
    assert settings["data_dir"] == str(daemon.data_dir)
    assert settings["transports"] == "shm,tcp"


def test_events_begin_with_what_is_there_and_go_on(
    daemon: StoreProcess, client: RawClient, admin: Admin
) -> None:
    client.put("before", b"x")
    request = urllib.request.Request(
        daemon.admin + "/v1/events", headers={"Authorization": f"Bearer {daemon.token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as stream:
        events = _events(stream)
        kind, snapshot = next(events)
        assert kind == "snapshot"
        assert snapshot["source"] == daemon.instance
        stored = set()
        for kind, event in events:
            if kind == "live":
                break
            assert (kind, event["seq"]) == ("kv", snapshot["seq"])
            stored |= set(event["entries"])
        assert event["seq"] == snapshot["seq"]
        assert stored == {entry_id("before").hex()}
        client.put("after", b"x")
        client.call(wire.Remove([entry_id("before")]))
        _, first = next(events)
        _, second = next(events)
        assert (first["kind"], first["seq"]) == ("stored", snapshot["seq"] + 1)
        assert (second["kind"], second["seq"]) == ("removed", snapshot["seq"] + 2)
        assert second["entries"] == [entry_id("before").hex()]
        assert admin.stats()["event_streams"] == 1
    wait_until(lambda: admin.stats()["event_streams"] == 0)


def _events(stream: Any) -> Iterator[tuple[str, Any]]:
    kind = ""
    for raw in stream:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])
