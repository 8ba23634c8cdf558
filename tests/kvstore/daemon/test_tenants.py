"""Tenants and store admission in a real daemon: what crosses (nothing), what is written, what an
operator sees and sets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from moontide.kvstore import BlockKey, StoreClient, kv_entry_id, wire
from moontide.kvstore.opening import namespace_message
from moontide.kvstore.store import tenant_digest
from moontide.kvstore.types import PutStatus, ReserveStatus

from ...store_process import StartStore, StoreProcess
from .admin import Admin
from .raw_client import RawClient, local_client
from .warm import (
    ALICE,
    BLOCK_BYTES,
    BOB,
    NAMESPACE,
    NUM_LAYERS,
    client_of,
    hits,
    prompt,
    write_blocks,
)

SHARDS = NAMESPACE.layout.whole()


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--dram", "64MiB", "--segment", "8MiB")


@pytest.fixture
def admin(daemon: StoreProcess) -> Iterator[Admin]:
    opened = Admin(daemon.admin, daemon.token)
    yield opened
    opened.patch(
        "/v1/config",
        {"settings": {"admission": "all", "tenant_cap": "none", "tenant_share": "none"}},
    )
    opened.post("/v1/clear")


@pytest.fixture
def client(daemon: StoreProcess) -> Iterator[StoreClient]:
    with client_of(daemon) as opened:
        yield opened


def written_bytes(admin: Admin) -> float:
    (family,) = [
        family
        for family in text_string_to_metric_families(admin.get("/metrics"))
        if family.name == "moontide_store_written_bytes"
    ]
    return sum(
        sample.value
        for sample in family.samples
        if sample.labels["tier"] == "dram" and sample.name.endswith("_total")
    )


def test_r32_nothing_of_a_tenant_crosses_to_another(
    daemon: StoreProcess, admin: Admin, client: StoreClient
) -> None:
    tokens = prompt(4)
    write_blocks(client, tokens, ALICE)
    with client.kv(ALICE) as alice, client.kv(BOB) as bob:
        assert (hits(alice, tokens), hits(bob, tokens)) == (len(tokens), 0)
        guessed = [kv_entry_id(key, shard) for key in bob.keys(tokens) for shard in SHARDS]
    with local_client(daemon.socket) as raw:
        assert raw.call(wire.Exists(list(guessed))).message.found == bytes(len(guessed))
        assert raw.call(wire.Lookup(list(guessed))).message.found == [None] * len(guessed)
    listed = admin.get(f"/v1/blocks?namespace={BOB.digest.hex()}")["entries"]
    assert listed == []
    metrics = admin.get("/metrics")
    shown = [admin.get("/v1/tenants"), admin.stats(), admin.get("/v1/config"), metrics]
    for secret in (ALICE.salt, BOB.salt):
        assert not any(secret in str(each) for each in shown)
        assert secret not in daemon.log.read_text()
    for digest in (tenant_digest(ALICE.salt), ALICE.digest.hex()):
        assert digest in str(shown[0])
        assert digest not in metrics


def test_r62_forged_keys_under_another_namespace_select_nothing(
    daemon: StoreProcess, admin: Admin, client: StoreClient
) -> None:
    """A client that somehow knows a tenant's keys stores other bytes under them, in its own
    namespace: the tenant's readers never get them."""
    tokens = prompt(2)
    with client.kv(ALICE) as alice, local_client(daemon.socket) as forger:
        keys = alice.keys(tokens)
        number = forger.call(namespace_message(BOB)).message.namespace
        store_raw(forger, number, keys)
        assert hits(alice, tokens) == 0
        with alice.reader(tokens) as reader:
            assert reader.num_tokens == 0


def store_raw(raw: RawClient, namespace: int, keys: list[BlockKey]) -> None:
    packed = [shard.pack() for shard in SHARDS]
    message = wire.ReserveBlocks(namespace, b"".join(keys), b"", packed)
    reserved = raw.call(message).message.results
    slots, generations = [r[1] for r in reserved], [r[2] for r in reserved]
    assert {r[0] for r in reserved} == {ReserveStatus.RESERVED}
    for layer in range(NUM_LAYERS):
        raw.call(wire.Advance(slots, generations, layer, [0] * len(slots)))
    results = raw.call(wire.Commit(slots, generations, [])).message.results
    assert {status for status, _ in results} == {PutStatus.STORED}


def test_r50_a_growing_prefix_writes_only_its_new_blocks(admin: Admin, client: StoreClient) -> None:
    before = written_bytes(admin)
    for num_blocks in (4, 4, 6, 9):
        write_blocks(client, prompt(num_blocks), ALICE)
    assert written_bytes(admin) - before == 9 * BLOCK_BYTES


def test_second_use_writes_what_is_offered_again(admin: Admin, client: StoreClient) -> None:
    before, turned_away = written_bytes(admin), admin.stats()["not_admitted"]
    rule = f"all,{BOB.digest.hex()}=second-use"
    admin.patch("/v1/config", {"settings": {"admission": rule}})
    with client.kv(BOB) as bob:
        write_blocks(client, prompt(3), BOB)
        assert (hits(bob, prompt(3)), written_bytes(admin)) == (0, before)
        write_blocks(client, prompt(5), BOB)
        assert hits(bob, prompt(5)) == 3 * BOB.block_tokens
    assert written_bytes(admin) - before == 3 * BLOCK_BYTES
    assert admin.stats()["not_admitted"] - turned_away == 5
    assert admin.stats()["refused_puts"] == 0


def test_a_cap_set_while_the_store_runs_holds(admin: Admin, client: StoreClient) -> None:
    cap = 8 * BLOCK_BYTES
    setting = f"none,{tenant_digest(BOB.salt)}={cap}"
    admin.patch("/v1/config", {"settings": {"tenant_cap": setting}})
    write_blocks(client, prompt(4), ALICE)
    for number in range(5):
        write_blocks(client, prompt(4, seed=number), BOB)
    held = {each["tenant"]: each for each in admin.get("/v1/tenants")["tenants"]}
    assert held[tenant_digest(BOB.salt)]["dram_bytes"] <= cap
    assert held[tenant_digest(BOB.salt)]["cap_bytes"] == cap
    with client.kv(ALICE) as alice:
        assert hits(alice, prompt(4)) == 4 * ALICE.block_tokens


def test_clients_of_a_tenant_at_its_cap_are_not_refused_and_take_nothing_from_others(
    daemon: StoreProcess, admin: Admin, client: StoreClient
) -> None:
    """Three more of them, of a pool that is full: none gets a segment that others filled."""
    alice, bob = tenant_digest(ALICE.salt), tenant_digest(BOB.salt)
    cap = 64 * BLOCK_BYTES
    admin.patch("/v1/config", {"settings": {"tenant_cap": f"none,{bob}={cap}"}})
    refused_before = admin.stats()["refused_puts"]
    for number in range(160):
        write_blocks(client, prompt(64, seed=number), ALICE)

    def write_many(first: int) -> None:
        with client_of(daemon) as own:
            for number in range(first, first + 50):
                write_blocks(own, prompt(16, seed=number), BOB)

    def held() -> dict[str, int]:
        return {each["tenant"]: each["dram_bytes"] for each in admin.get("/v1/tenants")["tenants"]}

    write_many(1000)
    with client.kv(ALICE) as store:
        hit = [hits(store, prompt(64, seed=number)) for number in range(160)]
    assert any(hit)
    of_alice = held()[alice]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(write_many, (2000, 3000, 4000))) == [None] * 3
    assert admin.stats()["refused_puts"] == refused_before
    assert 0 < held()[bob] <= cap
    assert held()[alice] >= of_alice - cap


@pytest.mark.parametrize(
    "values",
    [
        {"admission": "sometimes"},
        {"admission": "all,xyz=all"},
        {"admission": "depth:0"},
        {"tenant_cap": "lots"},
        {"tenant_share": "none,abc=1GiB"},
    ],
)
def test_a_wrong_rule_is_refused_and_changes_nothing(admin: Admin, values: dict[str, str]) -> None:
    before = admin.get("/v1/config")
    assert admin.call("PATCH", "/v1/config", {"settings": values}).status == 400
    assert admin.get("/v1/config") == before
