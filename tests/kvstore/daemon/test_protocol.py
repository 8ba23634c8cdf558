"""A real daemon and a raw client: every message of the wire does what it says."""

from __future__ import annotations

import contextlib
import json
import mmap
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
import xxhash

from moontide.kvstore import wire
from moontide.kvstore.keys import Namespace, block_keys
from moontide.kvstore.layout import Group, KVLayout
from moontide.kvstore.polling import POLL_SECONDS
from moontide.kvstore.slots import SlotReader
from moontide.kvstore.types import PutStatus, ReserveStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .admin import Admin
from .raw_client import (
    RawClient,
    entry_id,
    local_client,
    map_whole,
    put_message,
    remote_client,
)

NAMESPACE = Namespace(
    weights_id="w",
    layout=KVLayout((Group("full", 2, 1, 8, "float32"),)),
    tokenizer_digest="t",
    block_tokens=4,
)
SHARD = NAMESPACE.layout.whole()[0]
LAYER_BYTES = NAMESPACE.layout.layer_bytes(SHARD, 4)
KEYS = block_keys(NAMESPACE, range(8))


@pytest.fixture(autouse=True)
def _empty_afterwards(admin: Admin) -> Iterator[None]:
    yield
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.post("/v1/clear")


@pytest.fixture(params=["unix", "tcp"])
def client(request: pytest.FixtureRequest, daemon: StoreProcess) -> Iterator[RawClient]:
    if request.param == "unix":
        opened = local_client(daemon.socket)
    else:
        opened = remote_client(daemon.listen, daemon.token)
    with opened:
        yield opened
    if request.param == "unix":  # no write of this process is running: nothing stays set aside
        local_client(daemon.socket, opened.instance, quiesced=True).close()


def failure(answer: Any) -> str:
    assert isinstance(answer.message, wire.Failure), answer
    return answer.message.code


# -- string entries ---------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 65536, 3 << 20])
def test_a_value_comes_back_as_it_went_in(client: RawClient, size: int) -> None:
    value = secrets.token_bytes(size)
    assert client.get("a") is None
    assert client.put("a", value) == (PutStatus.STORED, "")
    assert client.get("a") == value


def test_if_exists_decides_what_a_second_put_does(client: RawClient) -> None:
    client.put("a", b"first")
    assert client.put("a", b"second")[0] == PutStatus.EXISTS
    assert client.put("a", b"second", if_exists="error")[0] == PutStatus.EXISTS
    assert client.get("a") == b"first"
    assert client.put("a", b"third", if_exists="replace")[0] == PutStatus.STORED
    assert client.get("a") == b"third"


def test_exists_remove_and_clear(client: RawClient) -> None:
    items = [(f"k{index}", b"value%d" % index) for index in range(5)]
    client.call(put_message(items), b"".join(value for _, value in items))
    ids = [entry_id(f"k{index}") for index in range(6)]
    assert client.call(wire.Exists(ids)).message.found == b"\1\1\1\1\1\0"
    assert client.call(wire.Remove(ids[:2])).message.count == 2
    assert client.call(wire.Exists(ids)).message.found == b"\0\0\1\1\1\0"
    assert client.call(wire.Clear(strings_only=True)).message.count == 3
    assert client.call(wire.Exists(ids)).message.found == bytes(6)


def test_a_clear_is_in_force_for_what_follows_it_and_spares_what_is_put_meanwhile(
    client: RawClient,
) -> None:
    """Nobody waits for its answer, which comes when everything is swept."""
    items = [(f"k{index}", b"v") for index in range(20_000)]
    for start in range(0, len(items), 4000):
        part = items[start : start + 4000]
        client.call(put_message(part), b"v" * len(part))
    ids = [entry_id(key) for key, _ in items[:4000]]
    number = client.send(wire.Clear(strings_only=True))
    found = client.send(wire.Exists(ids))
    put = client.send(put_message([("k7", b"new")]), b"new")
    answers = {answer.request_id: answer.message for answer in [client.receive() for _ in range(3)]}
    assert answers[found].found == bytes(len(ids))
    assert answers[put].results[0][0] == PutStatus.STORED
    assert answers[number].count == len(items)
    assert client.get("k7") == b"new"


def test_a_batch_gives_one_result_a_key_and_refused_bytes_do_not_shift_the_rest(
    client: RawClient,
) -> None:
    client.put("b", b"old")
    items = [("a", b"aaaa"), ("b", b"BBBBBBBB"), ("c", b"cc")]
    answer = client.call(put_message(items), b"aaaaBBBBBBBBcc")
    assert [status for status, _ in answer.message.results] == [0, PutStatus.EXISTS, 0]
    answer = client.call(wire.Get([entry_id(key) for key in ("c", "b", "x", "a")]))
    assert answer.message.sizes == [2, 3, -1, 4]
    assert answer.payload == b"ccoldaaaa"


def test_a_value_larger_than_a_segment_fails_naming_both_numbers(client: RawClient) -> None:
    status, reason = client.put("a", bytes(5 << 20))
    assert status == PutStatus.FAILED
    assert str(5 << 20) in reason
    assert str(4 << 20) in reason
    assert client.put("b", b"fine")[0] == PutStatus.STORED


def test_requests_are_pipelined_and_answered_in_order(client: RawClient) -> None:
    client.put("a", b"value")
    sent = [client.send(wire.Get([entry_id("a")])) for _ in range(300)]
    answers = [client.receive() for _ in sent]
    assert [answer.request_id for answer in answers] == sent
    assert {answer.payload for answer in answers} == {b"value"}


def test_written_through_the_socket_in_pieces(client: RawClient) -> None:
    value = secrets.token_bytes(100_000)
    reserved = client.call(wire.Reserve([entry_id("a")], [len(value)])).message.results[0]
    status, slot, generation = reserved[:3]
    assert status == ReserveStatus.RESERVED
    for start in range(0, len(value), 30_000):
        piece = value[start : start + 30_000]
        answer = client.call(wire.Write(slot, generation, start), piece)
        assert answer.message == wire.Ok()
    assert client.get("a") is None
    checksum = xxhash.xxh3_64_intdigest(value)
    answer = client.call(wire.Commit([slot], [generation], [checksum]))
    assert answer.message.results == [(PutStatus.STORED, "")]
    assert client.get("a") == value


def test_a_write_outside_the_entry_or_to_anothers_reservation_is_refused(
    client: RawClient, daemon: StoreProcess
) -> None:
    reserved = client.call(wire.Reserve([entry_id("a")], [100])).message.results[0]
    slot, generation = reserved[1:3]
    for offset, size in ((100, 1), (50, 51), (0, 101)):
        assert failure(client.call(wire.Write(slot, generation, offset), bytes(size))) == (
            "invalid_request"
        )
    with local_client(daemon.socket) as other:
        assert failure(other.call(wire.Write(slot, generation, 0), b"x")) == "invalid_request"
        assert other.call(wire.Commit([slot], [generation], [1])).message.results[0][0] == (
            PutStatus.FAILED
        )


def test_an_aborted_reservation_leaves_nothing(client: RawClient, admin: Admin) -> None:
    reserved = client.call(wire.Reserve([entry_id("a")], [100])).message.results[0]
    client.call(wire.Abort([reserved[1]], [reserved[2]]))
    assert client.get("a") is None
    admin.check_at_rest()


def test_r15_a_pin_released_twice_or_by_another_is_refused_and_counted(
    client: RawClient, daemon: StoreProcess, admin: Admin
) -> None:
    client.put("a", b"value")
    look = wire.Lookup([entry_id("a")], pin_s=0)
    mine, kept = (client.call(look).message.ticket for _ in range(2))
    before = admin.stats()["double_releases"]
    with local_client(daemon.socket) as other:
        assert failure(other.call(wire.Unpin(mine))) == "invalid_request"
    assert client.call(wire.Unpin(mine)).message == wire.Ok()
    assert failure(client.call(wire.Unpin(mine))) == "invalid_request"
    stats = admin.stats()
    assert (stats["double_releases"], stats["pins"]) == (before + 2, 1)
    client.call(wire.Unpin(kept))
    admin.check_at_rest()


def test_bad_arguments_are_told_and_the_connection_goes_on(client: RawClient) -> None:
    nan = float("nan")
    for message, payload in (
        (wire.Get([b"x"]), b""),
        (wire.Get([b"s"]), b""),
        (wire.Get([b"k" + bytes(3)]), b""),
        (wire.Get([entry_id("x")] * (wire.MAX_KEYS + 1)), b""),
        (wire.Put([entry_id("a")], [3], [1]), b"four"),
        (wire.Put([entry_id("a")], [-1], [1]), b""),
        (wire.Put([entry_id("a")], [1], []), b"x"),
        (wire.Put([b"k" + bytes(25)], [1], [1]), b"x"),
        (wire.Put([entry_id("a")], [1], [1], ttl_s=nan), b"x"),
        (wire.Put([entry_id("a")], [1], [1], ttl_s=-1.0), b"x"),
        (wire.Exists([entry_id("a")]), b"a payload"),
        (wire.Locate([b"k" + bytes(3)]), b""),
        (wire.Locate([entry_id("x")] * (wire.MAX_KEYS + 1)), b""),
        (wire.Lookup([entry_id("a")], pin_s=float("inf")), b""),
        (wire.Write(1 << 31, 1, 0), b"x"),
        (wire.Advance([-1], [1], 0, [0]), b""),
        (wire.Commit([1], [1, 2], []), b""),
        (wire.MapSegment(-1), b""),
        (wire.MapSegment(1 << 40), b""),
        (wire.Unpin(b"no such ticket"), b""),
        (wire.RenewTicket(b"no such ticket", 1.0), b""),
        (wire.LookupBlocks(999, bytes(16), [SHARD.pack()]), b""),
        (wire.LookupBlocks(0, bytes(15), [SHARD.pack()]), b""),
        (wire.LookupBlocks(0, bytes(16), [b"shard"]), b""),
        (wire.LookupBlocks(0, bytes(16), []), b""),
        (wire.ReserveBlocks(0, bytes(16), b"parent", [SHARD.pack()]), b""),
        (wire.AwaitExtent(1 << 31, 1, 0, 1.0), b""),
        (wire.AwaitExtent(0, 1, 0, nan), b""),
        (wire.PublishHbm(77, bytes(16), b""), b""),
        (wire.ReleaseSegment(1 << 31), b""),
        (wire.Hello(1, 1, "a/1/00", "", False), b""),
    ):
        answer = client.call(message, payload)
        assert failure(answer) in ("invalid_request", "view_expired"), message
    assert client.put("fine", b"value")[0] == PutStatus.STORED


# -- blocks -----------------------------------------------------------------------


def open_namespace(client: RawClient) -> int:
    group = NAMESPACE.layout.groups[0]
    fields = (group.kind, group.num_layers, group.num_kv_heads, group.head_dim, group.dtype)
    answer = client.call(
        wire.OpenNamespace(NAMESPACE.digest, "w", "t", 4, "", "", "", [(*fields, None, None)])
    )
    number: int = answer.message.namespace
    return number


def test_a_block_is_written_layer_by_layer_and_read_back(client: RawClient, admin: Admin) -> None:
    namespace = open_namespace(client)
    reserved = client.call(
        wire.ReserveBlocks(namespace, b"".join(KEYS), b"", [SHARD.pack()])
    ).message.results
    slots = [result[1] for result in reserved]
    generations = [result[2] for result in reserved]
    stride = NAMESPACE.layout.layer_stride(SHARD, 4)
    layers = [[secrets.token_bytes(LAYER_BYTES) for _ in KEYS] for _ in range(2)]
    for layer, blocks in enumerate(layers):
        for slot, generation, data in zip(slots, generations, blocks, strict=True):
            client.call(wire.Write(slot, generation, layer * stride), data)
        checksums = [xxhash.xxh3_64_intdigest(data) for data in blocks]
        client.call(wire.Advance(slots, generations, layer, checksums))
    coverage = [SHARD.pack()]
    look = wire.LookupBlocks(namespace, b"".join(KEYS), coverage, pin_s=5.0)
    assert client.call(look).message.blocks == []
    client.call(wire.Commit(slots, generations, []))
    found = client.call(look).message
    assert len(found.blocks) == 2
    entry = found.blocks[1][0]
    answer = client.call(wire.Read([entry.slot] * 3, [entry.generation] * 3, [0, 1, 2]))
    assert answer.message.sizes == [LAYER_BYTES, LAYER_BYTES, -1]
    assert answer.payload == layers[0][1] + layers[1][1]
    assert client.call(wire.Unpin(found.ticket)).message == wire.Ok()
    admin.check_at_rest()


def test_a_reader_is_told_when_a_layer_is_complete_and_when_it_never_will_be(
    daemon: StoreProcess, client: RawClient
) -> None:
    namespace = open_namespace(client)
    reserved = client.call(
        wire.ReserveBlocks(namespace, KEYS[0], b"", [SHARD.pack()])
    ).message.results[0]
    slot, generation = reserved[1:3]
    with local_client(daemon.socket) as reader:
        first = reader.send(wire.AwaitExtent(slot, generation, 0, 10.0))
        second = reader.send(wire.AwaitExtent(slot, generation, 1, 10.0))
        late = reader.call(wire.AwaitExtent(slot, generation, 1, 0.05))
        assert late.message.code == "timeout"
        client.call(wire.Write(slot, generation, 0), bytes(LAYER_BYTES))
        client.call(wire.Advance([slot], [generation], 0, [0]))
        answer = reader.receive()
        assert (answer.request_id, answer.message) == (first, wire.Ok())
        client.call(wire.Abort([slot], [generation]))
        answer = reader.receive()
        assert answer.request_id == second
        assert answer.message.code == "view_expired"


def test_a_namespace_whose_digest_differs_is_refused(client: RawClient) -> None:
    groups = [("full", 2, 1, 8, "float32", None, None)]
    answer = client.call(wire.OpenNamespace(bytes(32), "w", "t", 4, "", "", "", groups))
    assert failure(answer) == "layout_mismatch"
    assert NAMESPACE.digest.hex() in answer.message.message
    assert bytes(32).hex() in answer.message.message


def test_hbm_blocks_end_with_their_connection(daemon: StoreProcess, admin: Admin) -> None:
    with local_client(daemon.socket) as engine:
        namespace = open_namespace(engine)
        engine.call(wire.PublishHbm(namespace, b"".join(KEYS), b""))
        assert admin.stats()["hbm_blocks"] == 2
    with local_client(daemon.socket) as other:
        other.call(wire.GetStats())
        assert admin.stats()["hbm_blocks"] == 0


# -- shared memory ----------------------------------------------------------------


def test_a_local_client_reads_committed_bytes_from_a_read_only_mapping(
    daemon: StoreProcess,
) -> None:
    value = secrets.token_bytes(200_000)
    with RawClient(f"unix:{daemon.socket}") as client:
        hello = client.hello()
        assert hello.message.shared_memory
        client.put("a", value)
        place = client.call(wire.Lookup([entry_id("a")], pin_s=0)).message.found[0]
        slot, generation, segment, offset, length, checksum = place
        answer = client.call(wire.MapSegment(segment))
        with (
            map_whole(answer.descriptors[0], answer.message.num_bytes, mmap.ACCESS_READ) as memory,
            map_whole(
                hello.descriptors[0], hello.message.slot_table_bytes, mmap.ACCESS_READ
            ) as table,
        ):
            data = memory[offset : offset + length]
            assert data == value
            assert checksum == xxhash.xxh3_64_intdigest(data)
            words = memoryview(table)
            reader = SlotReader(words)
            assert reader.is_current(slot, generation)
            client.call(wire.Remove([entry_id("a")]))
            del reader
            words.release()
        with pytest.raises(PermissionError):
            map_whole(answer.descriptors[0], answer.message.num_bytes, mmap.ACCESS_WRITE)


def test_a_local_client_writes_into_the_segment_granted_to_it(daemon: StoreProcess) -> None:
    value = secrets.token_bytes(300_000)
    with local_client(daemon.socket) as client:
        reserved = client.call(wire.Reserve([entry_id("a")], [len(value)])).message.results[0]
        _, slot, generation, segment, offset, writable = reserved
        assert writable
        answer = client.call(wire.MapSegment(segment, writable=True))
        num_bytes = answer.message.num_bytes
        with map_whole(answer.descriptors[0], num_bytes, mmap.ACCESS_WRITE) as memory:
            memory[offset : offset + len(value)] = value
        client.call(wire.Commit([slot], [generation], [xxhash.xxh3_64_intdigest(value)]))
        with local_client(daemon.socket) as other:
            assert other.get("a") == value
            refused = other.call(wire.MapSegment(segment, writable=True))
            assert failure(refused) == "invalid_request"
            assert not refused.descriptors


def test_a_remote_client_and_one_of_another_boot_share_no_memory(daemon: StoreProcess) -> None:
    with remote_client(daemon.listen, daemon.token) as remote:
        assert failure(remote.call(wire.MapSegment(0))) == "invalid_request"
    with RawClient(f"unix:{daemon.socket}") as foreign:
        answer = foreign.hello(boot_id="another-boot")
        assert not answer.message.shared_memory
        assert not answer.descriptors
        assert failure(foreign.call(wire.MapSegment(0))) == "invalid_request"
        reserved = foreign.call(wire.Reserve([entry_id("a")], [10])).message.results[0]
        assert not reserved[5]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_clients_of_this_machine_look_for_replies_before_they_sleep(
    daemon: StoreProcess, transport: str
) -> None:
    remote = transport == "tcp"
    for changes, seconds in (({}, POLL_SECONDS), ({"boot_id": "another-boot"}, 0.0)):
        with RawClient(daemon.listen if remote else f"unix:{daemon.socket}") as client:
            answer = client.hello(token=daemon.token if remote else "", **changes)
            assert answer.message.poll_seconds == seconds


# -- greeting ---------------------------------------------------------------------


def test_the_data_port_wants_the_token(daemon: StoreProcess, admin: Admin) -> None:
    before = admin.stats()["closed"].get("denied", 0)
    for token in ("wrong-token-wrong-token", daemon.token + "x"):
        with RawClient(daemon.listen) as client:
            assert failure(client.hello(token=token)) == "access_denied"
            with pytest.raises(EOFError):
                client.receive()
    with RawClient(daemon.listen) as client:
        client.receive()  # the challenge
        assert failure(client.hello()) == "access_denied"
    assert admin.stats()["closed"]["denied"] == before + 3
    with remote_client(daemon.listen, daemon.token) as client:
        assert client.put("a", b"value")[0] == PutStatus.STORED


def test_a_proof_is_good_for_one_connection(daemon: StoreProcess) -> None:
    with RawClient(daemon.listen) as first, RawClient(daemon.listen) as second:
        nonce = first.receive().message.nonce
        assert second.receive().message.nonce != nonce
        replayed = wire.prove(daemon.token.encode(), nonce, str(second.instance))
        assert failure(second.hello(proof=replayed)) == "access_denied"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"oldest_version": 7, "newest_version": 9}, "7..9"),
        ({"oldest_version": 0, "newest_version": 0}, "0..0"),
        ({"client": "nonsense"}, "nonsense"),
        ({"client": "node/x/00"}, "node/x/00"),
        ({"client": "node/1/0011"}, "2 bytes"),
        ({"client": "n" * 600 + "/1/" + "00" * 16}, "512"),
    ],
)
def test_a_bad_hello_is_told_and_ends_the_connection(
    daemon: StoreProcess, changes: dict[str, Any], told: str
) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        answer = client.hello(**changes)
        assert failure(answer) == "invalid_request"
        assert told in answer.message.message
        with pytest.raises(EOFError):
            client.receive()


def test_another_process_cannot_claim_a_clients_name(daemon: StoreProcess) -> None:
    with local_client(daemon.socket) as client, RawClient(daemon.listen) as thief:
        thief.instance = client.instance
        assert failure(thief.hello(token=daemon.token)) == "conflict"


def test_the_stats_message_is_the_body_of_the_rest_route(
    daemon: StoreProcess, admin: Admin
) -> None:
    with local_client(daemon.socket) as client:
        told = json.loads(client.call(wire.GetStats()).message.stats)
        assert told.keys() == admin.stats().keys()
        assert told["instance"] == daemon.instance
        assert told["connections"] == 1


def test_a_granted_segment_is_asked_back_when_others_need_room(
    store_daemon: StartStore,
) -> None:
    daemon = store_daemon()
    admin = Admin(daemon.admin, daemon.token)
    largest = 4 << 20
    with (
        local_client(daemon.socket) as holder,
        remote_client(daemon.listen or "", daemon.token) as other,
    ):
        granted = set()
        for index in range(20):
            answer = holder.call(wire.Reserve([entry_id(f"h{index}")], [largest]))
            status, slot, generation, segment, _, writable = answer.message.results[0]
            if status == ReserveStatus.RESERVED and writable:
                granted.add(segment)
            holder.call(wire.Commit([slot], [generation], [1]))
        assert admin.stats()["segments_granted"] == len(granted)
        revoked = None
        deadline = time.monotonic() + 10
        holder.socket.settimeout(0.2)
        while revoked is None:
            assert time.monotonic() < deadline
            other.put(f"o{time.monotonic()}", bytes(largest))
            with contextlib.suppress(TimeoutError):
                revoked = holder.receive()
        assert revoked.request_id == 0
        assert revoked.message.segment in granted
        holder.socket.settimeout(10)
        before = admin.stats()["segments_granted"]
        holder.call_among(wire.ReleaseSegment(revoked.message.segment))
        assert admin.stats()["segments_granted"] == before - 1
