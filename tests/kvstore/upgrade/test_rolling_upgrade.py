"""While a cluster is upgraded, clients and stores of this version and the one before work with each
other: each side says and hears only what version 1 knows (golden frames: wire_v1_vectors.json)."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash

from moontide.kvstore import PutStatus, StoreClient, connect
from moontide.transfer.types import boot_id

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from ..client.helpers import NAMESPACE, SECONDS, TOKENS, check_prompt, write_prompt
from ..daemon.admin import Admin
from . import version_one

VECTORS = Path(__file__).parents[2] / "data" / "wire_v1_vectors.json"
CASES = json.loads(VECTORS.read_text())["cases"]
SIZES = [0, 1, 64, 4095, 4096, 70_000, 1 << 20]
KINDS = (*version_one.Request.__args__, *version_one.Reply.__args__)
digest = xxhash.xxh3_64_intdigest


def value(size: int, seed: int = 0) -> bytes:
    return bytes((index * 7 + seed) % 251 for index in range(256)) * (size // 256) + bytes(
        [seed + 1] * (size % 256)
    )


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "32MiB", "--segment", "4MiB", "--nvme", "32MiB")


@pytest.fixture(autouse=True)
def _at_rest_afterwards(daemon: StoreProcess) -> Iterator[None]:
    yield
    admin = Admin(daemon.admin, daemon.token)
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.post("/v1/clear")
    names = ("pins", "tickets", "in_flight", "fills", "runs", "quarantined")
    wait_until(lambda: not any(admin.stats()[name] for name in names), seconds=20.0)
    admin.check_at_rest()
    assert admin.stats()["internal_errors"] == 0


def test_the_frozen_messages_are_those_of_the_golden_frames() -> None:
    """One of each, decoded and encoded again, is the same bytes."""
    assert {case["message"] for case in CASES} == {kind.__name__ for kind in KINDS}
    decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in KINDS}
    for case in CASES:
        frame = bytes.fromhex(case["frame"])
        message = decoders[case["message"]].decode(frame[version_one.HEADER.size :])
        assert msgspec.msgpack.encode(message) == frame[version_one.HEADER.size :]


# -- the client is older ----------------------------------------------------------------


@pytest.fixture
def old_client(daemon: StoreProcess) -> Iterator[version_one.Client]:
    client = version_one.Client(daemon.socket, boot_id())
    yield client
    client.close()


def test_an_older_client_is_welcomed_in_its_version(old_client: version_one.Client) -> None:
    assert old_client.welcome.version == 1
    assert old_client.welcome.layout_version == 1
    assert old_client.welcome.shared_memory


@pytest.mark.parametrize("size", SIZES)
def test_an_older_client_puts_and_gets(old_client: version_one.Client, size: int) -> None:
    data = value(size)
    put = version_one.Put([b"sa"], [size], [digest(data)], "keep", None, False, 1)
    assert old_client.call(put, data)[0] == version_one.PutReply([(0, "")])
    reply, got = old_client.call(version_one.Get([b"sa", b"snothing"]))
    assert (reply.sizes, got) == ([size, -1], data)
    assert reply.checksums[0] == digest(data)
    assert old_client.call(version_one.Exists([b"sa", b"sb"]))[0].found == b"\1\0"
    assert old_client.call(version_one.Remove([b"sa"], None))[0].count == 1
    assert old_client.call(version_one.Get([b"sa"]))[0].sizes == [-1]


def test_an_older_client_writes_in_place_and_reads_under_a_pin(
    daemon: StoreProcess, old_client: version_one.Client
) -> None:
    """In a segment granted to it, and read by a client of today, and the other way round."""
    data = value(200_000)
    reserve = version_one.Reserve([b"sa"], [len(data)], "keep", None, False, 1)
    _, slot, generation, segment, offset, writable = old_client.call(reserve)[0].results[0]
    assert writable
    mapped, _ = old_client.call(version_one.MapSegment(segment, True))
    with mmap.mmap(old_client.descriptors[-1], mapped.num_bytes) as memory:
        memory[offset : offset + len(data)] = data
        commit = version_one.Commit([slot], [generation], [digest(data)])
        assert old_client.call(commit)[0].results == [(0, "")]
        with connect(f"unix:{daemon.socket}", timeout_s=SECONDS) as today:
            assert today.get("a") == data
            assert today.put("b", data).status is PutStatus.STORED
    reply, _ = old_client.call(version_one.Lookup([b"sa", b"sb"], 0.0, False))
    assert [found[4:] for found in reply.found] == [(len(data), digest(data))] * 2
    assert old_client.call(version_one.GetStats())[0].stats.startswith(b"{")
    assert old_client.call(version_one.Unpin(reply.ticket, len(data)))[0] == version_one.Ok()
    again, _ = old_client.call(version_one.Unpin(reply.ticket, 0))
    assert again.code == "invalid_request"


def test_an_older_client_stores_and_finds_blocks(
    daemon: StoreProcess, old_client: version_one.Client
) -> None:
    groups = [
        (g.kind, g.num_layers, g.num_kv_heads, g.head_dim, g.dtype, g.v_head_dim, g.window_tokens)
        for g in NAMESPACE.layout.groups
    ]
    opened = version_one.OpenNamespace(
        NAMESPACE.digest, "w", "t", NAMESPACE.block_tokens, "", "", "", groups
    )
    namespace = old_client.call(opened)[0].namespace
    (whole,) = NAMESPACE.layout.whole()
    with connect(f"unix:{daemon.socket}", timeout_s=SECONDS) as today, today.kv(NAMESPACE) as kv:
        keys = b"".join(kv.keys(TOKENS))
        write_prompt(kv, TOKENS[:48])
        layers = [NAMESPACE.layout.layer_stride(whole, 16)] * kv.num_layers
        reserve = version_one.ReserveBlocks(namespace, keys, b"", [whole.pack()], None, False)
        results = old_client.call(reserve)[0].results
        assert [result[0] for result in results] == [1, 1, 1, 0, 0, 0]
        write_blocks(old_client, results[3:], layers)
        assert kv.lookup(TOKENS).num_tokens == 96
        find = version_one.LookupBlocks(
            namespace, keys, [whole.pack()], 5.0, False, False, 0.0, None
        )
        found = old_client.call(find)[0]
        assert len(found.blocks) == 6
        assert len(found.checksums) == 6 * len(layers) * 8
        slot, generation = found.blocks[3][0][:2]
        reply, data = old_client.call(version_one.Read([slot], [generation], [1]))
        assert data == b"\2" * reply.sizes[0]
        assert old_client.call(version_one.Unpin(found.ticket, 0))[0] == version_one.Ok()


def write_blocks(
    client: version_one.Client,
    reserved: list[tuple[int, int, int, int, int, bool]],
    layers: list[int],
) -> None:
    slots, generations = [one[1] for one in reserved], [one[2] for one in reserved]
    for layer, num_bytes in enumerate(layers):
        data = bytes([layer + 1]) * num_bytes
        for slot, generation in zip(slots, generations, strict=True):
            write = version_one.Write(slot, generation, layer * num_bytes)
            assert client.call(write, data)[0] == version_one.Ok()
        advance = version_one.Advance(slots, generations, layer, [digest(data)] * len(slots))
        assert client.call(advance)[0] == version_one.Ok()
    commit = version_one.Commit(slots, generations, [])
    assert client.call(commit)[0].results == [(0, "")] * len(slots)


# -- the store is older -----------------------------------------------------------------


@pytest.fixture
def old_store(daemon: StoreProcess) -> Iterator[version_one.Store]:
    store = version_one.Store(daemon.socket.with_suffix(".v1"), daemon.socket)
    yield store
    store.close()
    assert store.strangers == []
    daemon.socket.with_suffix(".v1").unlink()


@pytest.fixture
def client(daemon: StoreProcess, old_store: version_one.Store) -> Iterator[StoreClient]:
    with connect(f"unix:{daemon.socket.with_suffix('.v1')}", timeout_s=SECONDS) as client:
        yield client


def test_a_client_says_to_an_older_store_only_what_it_knows(
    client: StoreClient, old_store: version_one.Store
) -> None:
    """Every string call, small and large, one and many."""
    values = {f"k{size}": value(size) for size in SIZES}
    assert {r.status for r in client.put_many(list(values.items()))} == {PutStatus.STORED}
    assert client.get_many(list(values)) == list(values.values())
    for name, data in values.items():
        buffer = bytearray(len(data))
        assert client.get_into(name, buffer) == len(data)
        assert buffer == data
        assert client.put(name, data[::-1], if_exists="replace").status is PutStatus.STORED
        assert client.get(name) == data[::-1]
        with client.view(name) as view:  # type: ignore[union-attr]  # it is there
            assert view.data == data[::-1]
        assert client.size(name) == len(data)
    assert client.remove("k64")
    assert client.get("k64") is None
    assert client.exists_many(["k0", "k64"]) == [True, False]
    assert client.clear() == len(values) - 1
    assert old_store.requests["Lookup"] + old_store.requests["Get"] >= 2 * len(SIZES)


def test_an_older_store_gets_checksums_before_the_values(client: StoreClient) -> None:
    """So many that a store of today would get them behind."""
    values = {f"k{index}": value(10_000, index) for index in range(100)}
    results = client.put_many(list(values.items()), if_exists="replace")
    assert {result.status for result in results} == {PutStatus.STORED}
    assert client.get_many(list(values)) == list(values.values())


def test_a_client_asks_an_older_store_each_time(
    client: StoreClient, old_store: version_one.Store, daemon: StoreProcess
) -> None:
    """Its header slots do not tell that an entry was withdrawn, and nothing beats in them."""
    client.put("a", value(70_000))
    asked = old_store.requests["Lookup"] + old_store.requests["Get"]
    for _ in range(10):
        assert client.get("a") == value(70_000)
    assert old_store.requests["Lookup"] + old_store.requests["Get"] == asked + 10
    with client.view("a") as view, connect(f"unix:{daemon.socket}") as other:  # type: ignore[union-attr]  # it is there
        assert other.remove("a")
        assert view.data == value(70_000)
        assert client.get("a") is None


def test_an_older_store_gets_checksums_even_from_clients_without(
    daemon: StoreProcess, old_store: version_one.Store, old_client: version_one.Client
) -> None:
    """It would take a missing one for a wrong one."""
    path = daemon.socket.with_suffix(".v1")
    with connect(f"unix:{path}", timeout_s=SECONDS, checksums="off") as client:
        for size in SIZES:
            client.put(f"k{size}", value(size), if_exists="replace")
    entries = [b"sk%d" % size for size in SIZES]
    found = old_client.call(version_one.Lookup(entries, None, False))[0].found
    assert [each[5] for each in found] == [digest(value(size)) for size in SIZES]


def test_keys_are_pinned_in_an_older_store(client: StoreClient, daemon: StoreProcess) -> None:
    client.put("a", value(70_000), if_exists="replace")
    with client.pin(["a", "absent"]) as pinned, connect(f"unix:{daemon.socket}") as other:
        assert pinned.keys == ["a"]
        assert other.remove("a")
        assert pinned.view("a").data == value(70_000)
        assert other.stats()["pins"] == 1
        pinned.release()
        assert other.stats()["pins"] == 0


def test_blocks_in_an_older_store(client: StoreClient) -> None:
    with client.kv(NAMESPACE) as kv:
        write_prompt(kv, TOKENS)
        assert check_prompt(kv, TOKENS) == 96
        hit = kv.lookup(TOKENS, pin_s=5.0)
        kv.renew(hit.ticket)
        kv.release(hit.ticket)
