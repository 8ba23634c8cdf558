"""`moontide admin`: tables for people, JSON for scripts, one line when it cannot."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from moontide.kvstore.daemon.admin_command import admin

from ...store_process import StoreProcess
from .raw_client import local_client

Run = Callable[..., Result]


@pytest.fixture
def run(daemon: StoreProcess) -> Run:
    def call(*args: str, url: str = daemon.admin) -> Result:
        where = ("--url", url, "--token-file", str(daemon.token_file))
        return CliRunner().invoke(admin, [*args, *where], catch_exceptions=False)

    return call


def test_json_is_the_answer_of_the_route(daemon: StoreProcess, run: Run) -> None:
    with local_client(daemon.socket) as client:
        client.put("a/b", bytes(5000))
    stats = json.loads(run("stats", "--json").stdout)
    assert stats["instance"] == daemon.instance
    assert stats["tiers"]["dram"]["entries"] == 1
    page = json.loads(run("blocks", "--json").stdout)
    assert page["entries"][0]["key"] == "s:a/b"
    told = json.loads(run("evict", "--key", "s:a%2Fb", "--dry-run", "--json").stdout)
    assert (told["dry_run"], told["tiers"]["dram"]["entries"]) == (True, 1)
    assert json.loads(run("clear", "--json").stdout) == {"dry_run": False, "entries": 1}
    assert json.loads(run("audit", "--json").stdout)["differences"] == []


def test_people_get_tables_and_sentences(daemon: StoreProcess, run: Run) -> None:
    with local_client(daemon.socket) as client:
        client.put("hello", bytes(5000))
    stats = run("stats")
    assert stats.exit_code == 0, stats.stderr
    assert "64 MiB" in stats.stdout
    assert daemon.instance in stats.stdout
    assert "s:hello" in run("blocks").stdout
    assert "committed" in run("explain", "s:hello").stdout
    assert "1 entries would be removed" in run("clear", "--dry-run").stdout
    assert "accounts agree" in run("audit").stdout


def test_remove_takes_a_key_as_blocks_shows_it(daemon: StoreProcess, run: Run) -> None:
    keys = ("a/b", "50%", "%2F", "ü?#", "..")
    run("clear")  # what other tests left
    with local_client(daemon.socket) as client:
        for key in keys:
            client.put(key, b"v")
    shown = [entry["key"] for entry in json.loads(run("blocks", "--json").stdout)["entries"]]
    assert len(shown) == len(keys)
    for key in shown:
        assert run("remove", key).stdout == "1 entries removed\n"
    assert json.loads(run("remove", shown[0], "--json").stdout) == {"removed": 0}
    assert json.loads(run("blocks", "--json").stdout)["entries"] == []


def test_evict_stops_after_a_size(daemon: StoreProcess, run: Run) -> None:
    with local_client(daemon.socket) as client:
        for number in range(4):
            client.put(f"k{number}", bytes(8192))
    told = json.loads(run("evict", "--tier", "dram", "--bytes", "16KiB", "--json").stdout)
    assert told["tiers"]["dram"]["entries"] == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("evict", "--older-than-s", "nan"), "nan is no number of seconds"),
        (("evict", "--older-than-s", "inf"), "inf is no number of seconds"),
        (("evict", "--bytes", "4 cows"), "'4 cows' is no size"),
        (("pin", "s:k", "--ttl-s", "nan"), "nan is no number of seconds"),
        (("pin", "s:k", "--ttl-s", "1e9"), "0<x<=3600"),
        (("clear", "--timeout", "1e300"), "0<x<=86400"),
        (("clear", "--timeout", "0"), "0<x<=86400"),
    ],
)
def test_a_flag_that_means_nothing_is_refused_before_the_store_is_asked(
    run: Run, args: tuple[str, ...], told: str
) -> None:
    ended = run(*args)
    assert ended.exit_code == 2
    assert told in " ".join(ended.stderr.split())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("explain", "nonsense"), "key 'nonsense': write kv:HEX or s:PERCENT-ENCODED"),
        (("explain", "kv:00"), "key 'kv:00' has 1 bytes; a block key has 16"),
        (("blocks", "--namespace", "zz"), "namespace 'zz' is not hex digits in pairs"),
        (("blocks", "--key-prefix", "zz"), "key 'zz': write kv:HEX"),
        (("blocks", "--cursor", "zz"), "'zz'"),
        (("clear", "--namespace", "zz"), "namespace 'zz' is not hex digits in pairs"),
        (("clear", "--namespace", "00"), "'00' has 1 bytes; its digest has 32, in hex"),
        (("clear", "--namespace", "zz", "--dry-run"), "namespace 'zz' is not hex"),
        (("evict", "--namespace", "zz"), "namespace 'zz' is not hex digits in pairs"),
        (("evict", "--key", "zz"), "key 'zz': write kv:HEX"),
        (("evict", "--key-prefix", "kv:z"), "key 'kv:z' is not hex digits in pairs"),
        (("evict",), "give conditions or, to drop all that is not pinned, --all"),
        (("evict", "--all", "--tier", "dram", "--key", "s:k"), "give conditions or"),
        (("floor",), "give one of namespace, weights_id and salt"),
        (("floor", "--namespace", ""), "string entries have no floor"),
        (("floor", "--namespace", "zz"), "namespace 'zz' is not hex digits in pairs"),
        (("pin", "zz"), "key 'zz': write kv:HEX"),
        (("remove", "zz"), "key 'zz': write kv:HEX"),
        (("remove", ""), "key '': write kv:HEX"),
        (("remove", "s:k", "--namespace", "zz"), "namespace 'zz' is not hex digits in pairs"),
        (("unpin",), "give a PIN or --all"),
        (("unpin", "zz"), "'zz'"),
        (("move",), "give conditions or, to mean all that is there, --all"),
        (("config", "--set", "zz"), "--set zz: write NAME=VALUE"),
        (("config", "--set", "zz=1"), "zz"),
        (("config", "--set", "tenant_cap=4 cows"), "4 cows"),
    ],
)
def test_bad_input_is_one_line_that_names_it(run: Run, args: tuple[str, ...], told: str) -> None:
    ended = run(*args)
    assert ended.exit_code == 2, ended.output
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_proxy_of_the_environment_never_sees_the_token(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert run("stats").exit_code == 0


@pytest.mark.parametrize("url", ["zz", "http://127.0.0.1:1/x y", "http://"])
def test_a_url_that_is_none_is_refused(run: Run, url: str) -> None:
    ended = run("stats", url=url)
    assert ended.exit_code == 2
    assert f"{url!r} is no URL of a store: write http://HOST:PORT" in ended.stderr


def test_a_port_that_speaks_something_else_is_one_line(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(64 << 10)
                client.sendall(b"\0MT no HTTP\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        ended = run("stats", url=f"http://127.0.0.1:{server.getsockname()[1]}")
        answering.join()
    assert ended.exit_code == 1
    assert "speaks no HTTP: give the store's --admin address" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_token_file_that_is_not_there_is_bad_input() -> None:
    ended = CliRunner().invoke(admin, ["stats", "--token-file", "no/token"])
    assert ended.exit_code == 2
    assert "no/token does not exist: give the store's with --token-file" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_nobody_there_is_one_line(run: Run) -> None:
    ended = run("stats", url="http://127.0.0.1:1")
    assert ended.exit_code == 1
    assert "http://127.0.0.1:1" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
