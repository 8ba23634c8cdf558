"""What an operator changes in a running store: pins, draining, settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from moontide.kvstore import wire
from moontide.kvstore.daemon.admin_command import admin as admin_command

from ...store_process import StartStore, StoreProcess
from .admin import Admin
from .raw_client import RawClient, local_client, put_message

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "64MiB", "--segment", "8MiB")


@pytest.fixture
def client(daemon: StoreProcess, admin: Admin) -> Iterator[RawClient]:
    with local_client(daemon.socket) as opened:
        yield opened
    admin.post("/v1/undrain")
    admin.post("/v1/unpin")
    admin.post("/v1/clear")
    admin.check_at_rest()


@pytest.fixture
def run(daemon: StoreProcess) -> Run:
    def call(*args: str) -> Result:
        where = ("--url", daemon.admin, "--token-file", str(daemon.token_file))
        return CliRunner().invoke(admin_command, [*args, *where], catch_exceptions=False)

    return call


def test_what_is_pinned_stays_until_it_is_unpinned(client: RawClient, admin: Admin) -> None:
    client.put("kept", bytes(5000))
    client.put("other", bytes(5000))
    answer = admin.post("/v1/pin", {"keys": ["s:kept", "s:nothing"], "ttl_s": 60})
    assert (answer["entries"], answer["missing"]) == (1, ["s:nothing"])
    assert admin.get("/v1/pins")["pins"][0]["keys"] == ["s:kept", "s:nothing"]
    assert admin.post("/v1/evict")["tiers"]["dram"]["entries"] == 1
    assert (client.get("kept"), client.get("other")) == (bytes(5000), None)
    assert admin.post("/v1/unpin", {"pin": answer["pin"]}) == {"unpinned": 1}
    assert admin.get("/v1/pins") == {"pins": []}
    assert admin.post("/v1/evict")["tiers"]["dram"]["entries"] == 1


def test_r61_an_unknown_pin_and_endless_keys_are_refused(admin: Admin) -> None:
    assert admin.call("POST", "/v1/unpin", {"pin": "ff" * 16}).status == 400
    assert admin.call("POST", "/v1/pin", {"keys": ["s:a"] * 1025}).status == 400
    assert admin.call("POST", "/v1/pin", {"keys": []}).status == 400
    assert admin.call("POST", "/v1/pin", {"keys": ["s:a"], "ttl_s": 1e9}).status == 400
    assert admin.post("/v1/pin", {"keys": ["s:a"]})["pin"] == ""
    assert admin.get("/v1/pins") == {"pins": []}


def test_a_draining_store_takes_no_writes_and_answers_reads(
    client: RawClient, admin: Admin
) -> None:
    client.put("a", b"before")
    answer = admin.post("/v1/drain")
    assert (answer["draining"], answer["in_flight"]) == (True, 0)
    status, body = admin.call("GET", "/readyz")
    assert (status, body["error"]["code"]) == (503, "draining")
    assert admin.stats()["draining"] is True
    refused = client.call(put_message([("b", b"during")]), b"during").message
    assert isinstance(refused, wire.Failure)
    assert (refused.code, "draining" in refused.message) == ("unavailable", True)
    assert client.get("a") == b"before"
    admin.post("/v1/undrain")
    assert admin.get("/readyz") == {"status": "ok"}
    client.put("b", b"after")
    assert client.get("b") == b"after"


def test_settings_change_together_or_not_at_all(admin: Admin) -> None:
    before = admin.get("/v1/config")
    assert "stall_seconds" in before["changeable"]
    changed = admin.patch("/v1/config", {"settings": {"stall_seconds": "7"}})
    assert changed["settings"]["stall_seconds"] == "7.0"
    for values, told in (
        ({"stall_seconds": "9", "dram": "1GiB"}, "dram cannot change"),
        ({"stall_seconds": "-1"}, "--stall-seconds="),
        ({"no_such_thing": "1"}, "no_such_thing"),
    ):
        status, body = admin.call("PATCH", "/v1/config", {"settings": values})
        assert status == 400
        assert told in body["error"]["message"]
    assert admin.get("/v1/config")["settings"]["stall_seconds"] == "7.0"
    admin.patch("/v1/config", {"settings": {"stall_seconds": "30"}})


def test_the_command_does_what_the_routes_do(client: RawClient, run: Run) -> None:
    client.put("a", bytes(5000))
    assert "1 entries" in run("pin", "s:a", "--ttl-s", "60").stdout
    assert "s:a" in run("pins").stdout
    assert "1 pins ended" in run("unpin", "--all").stdout
    assert "draining" in run("drain").stdout
    assert "writes are taken" in run("drain", "--end").stdout
    assert "can change" in run("config").stdout
    shown = json.loads(run("config", "--set", "stall_seconds=30", "--json").stdout)
    assert shown["settings"]["stall_seconds"] == "30.0"
    assert json.loads(run("cluster", "--json").stdout) == {"node-a": "this store"}
    told = run("floor", "--namespace", "ab" * 32)
    assert "floor 1" in told.stdout


def test_evicting_everything_must_be_said(client: RawClient, run: Run) -> None:
    client.put("a", bytes(5000))
    ended = run("evict")
    assert ended.exit_code == 2
    assert "--all" in ended.stderr
    assert run("evict", "--tier", "dram").exit_code == 2
    assert client.get("a") is not None
    assert run("evict", "--all").exit_code == 0
    assert client.get("a") is None


def test_draining_brings_everything_to_disk(store_daemon: StartStore) -> None:
    node = store_daemon("--nvme", "256MiB", "--nvme-writes", "late")
    admin = Admin(node.admin, node.token)
    with local_client(node.socket) as client:
        client.put("a", bytes(100_000))
        told = admin.post("/v1/drain")
        assert (told["draining"], told["flushed"], told["in_flight"]) == (True, True, 0)
        assert admin.stats()["tiers"]["nvme"]["flushed"] == 1
        assert admin.post("/v1/undrain")["draining"] is False
        client.put("b", bytes(100_000))
    node.restart()  # kill -9
    with local_client(node.socket) as client:
        assert client.get("a") == bytes(100_000)
