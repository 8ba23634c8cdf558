"""Runs, Locate and NoteUse over the wire: what a client does, and what a hostile one gets."""

from __future__ import annotations

import mmap
import random
import struct
import time
from collections.abc import Iterator, Sequence

import pytest
import xxhash

from moontide.kvstore import wire
from moontide.kvstore.slots import BEAT_SECONDS, HEARTBEAT, SlotReader
from moontide.kvstore.types import PutStatus, ReserveStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client, map_whole, remote_client

VALUE = b"v" * 1024
RUN_BYTES = 64 << 10


@pytest.fixture(autouse=True)
def _clean_afterwards(admin: Admin) -> Iterator[None]:
    yield
    wait_until(lambda: admin.stats()["connections"] == 0)
    assert admin.post("/v1/audit")["differences"] == []
    admin.post("/v1/clear")


@pytest.fixture
def client(daemon: StoreProcess) -> Iterator[RawClient]:
    with local_client(daemon.socket) as opened:
        yield opened


def packed(kind: str, values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def unpacked(kind: str, data: bytes) -> list[int]:
    return memoryview(data).cast(kind).tolist()


class WrittenRun:
    """A run that holds VALUE every 1024 bytes."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        reserved = client.call(wire.ReserveRun(RUN_BYTES)).message
        status, self.slot, self.generation, self.segment, offset, writable = reserved.results[0]
        assert (status, writable) == (ReserveStatus.RESERVED, True)
        answer = client.call(wire.MapSegment(self.segment, writable=True))
        num_bytes = answer.message.num_bytes
        with map_whole(answer.descriptors[0], num_bytes, mmap.ACCESS_WRITE) as memory:
            memory[offset : offset + RUN_BYTES] = VALUE * (RUN_BYTES // len(VALUE))

    def message(self, keys: Sequence[str], first: int = 0, **options: object) -> wire.CommitRun:
        count = len(keys)
        return wire.CommitRun(
            self.slot,
            self.generation,
            [entry_id(key) for key in keys],
            packed("Q", [1024 * (first + index) for index in range(count)]),
            packed("Q", [1024] * count),
            packed("Q", [xxhash.xxh3_64_intdigest(VALUE)] * count),
            **options,  # type: ignore[arg-type]  # of any kind
        )

    def commit(self, keys: Sequence[str], first: int = 0, **options: object) -> wire.RunReply:
        reply = self.client.call(self.message(keys, first, **options)).message
        assert isinstance(reply, wire.RunReply), reply
        return reply


@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_a_batch_of_entries_is_stored_with_one_message(client: RawClient, count: int) -> None:
    keys = [f"key{index}" for index in range(count)]
    reply = WrittenRun(client).commit(keys)
    assert reply.statuses == bytes(count)
    assert reply.reason == ""
    assert all(client.get(key) == VALUE for key in keys)
    found = client.call(wire.Lookup([entry_id(key) for key in keys])).message.found
    assert [place[0] for place in found] == unpacked("I", reply.slots)
    assert [place[1] for place in found] == unpacked("I", reply.generations)


def test_what_is_there_is_kept_or_replaced(client: RawClient) -> None:
    client.put("b", b"old")
    run = WrittenRun(client)
    kept = run.commit(["a", "b"])
    assert list(kept.statuses) == [PutStatus.STORED, PutStatus.EXISTS]
    assert client.get("b") == b"old"
    assert list(run.commit(["b"], 2, if_exists="replace").statuses) == [PutStatus.STORED]
    assert client.get("b") == VALUE


def test_entries_with_a_time_to_live_end(client: RawClient) -> None:
    assert WrittenRun(client).commit(["a"], ttl_s=0.05).statuses == b"\0"
    wait_until(lambda: client.get("a") is None)


def test_the_welcome_tells_how_long_runs_should_be(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        welcome = client.hello().message
        assert 0 < welcome.run_bytes <= max(welcome.segment_sizes) // 8
    with RawClient(f"unix:{daemon.socket}") as client:
        assert client.hello(newest_version=1).message.run_bytes == 0
    with RawClient(daemon.listen) as client:
        assert client.hello(token=daemon.token).message.run_bytes == 0


@pytest.mark.parametrize(
    "message",
    [
        wire.ReserveRun(4096),
        wire.CommitRun(1, 1, [b"sa"], bytes(8), bytes(8), bytes(8)),
    ],
)
def test_a_client_of_version_1_has_no_runs(daemon: StoreProcess, message: wire.Request) -> None:
    with local_client(daemon.socket, newest_version=1) as client:
        reply = client.call(message).message
        assert isinstance(reply, wire.Failure)
        assert reply.code == "invalid_request"
        assert client.put("a", b"x") == (PutStatus.STORED, "")


def test_a_remote_client_has_no_runs(daemon: StoreProcess) -> None:
    with remote_client(daemon.listen, daemon.token) as client:
        assert client.call(wire.ReserveRun(4096)).message.code == "invalid_request"


def test_hostile_commits_change_nothing(client: RawClient, daemon: StoreProcess) -> None:
    run = WrittenRun(client)
    good = run.message(["a", "b"])
    lies = [
        {"offsets": packed("Q", [0, 0])},
        {"offsets": packed("Q", [1024, 0])},
        {"offsets": packed("Q", [0, 1025])},
        {"offsets": packed("Q", [0, RUN_BYTES])},
        {"offsets": packed("Q", [0, (1 << 64) - 64])},
        {"offsets": packed("Q", [0])},
        {"offsets": bytes(15)},
        {"sizes": packed("Q", [1024, (1 << 64) - 1])},
        {"sizes": packed("Q", [1025, 1024])},
        {"sizes": b""},
        {"checksums": bytes(24)},
        {"entries": [b"sa", b"kb"]},
        {"entries": [b"sa", b""]},
        {"entries": [b"sa"]},
        {"slot": -1},
        {"slot": 1 << 32},
        {"slot": run.slot + 1},
        {"generation": run.generation + 1},
        {"ttl_s": -1.0},
        {"ttl_s": float("nan")},
        {"replicas": 0},
        {"replicas": 2},
    ]
    for lie in lies:
        message = wire.CommitRun(
            **{name: getattr(good, name) for name in good.__struct_fields__} | lie
        )
        reply = client.call(message).message
        assert isinstance(reply, wire.Failure), lie
        assert reply.code == "invalid_request", lie
    with local_client(daemon.socket) as other:  # a run is its connection's alone
        assert other.call(good).message.code == "invalid_request"
    assert client.call(wire.Exists([entry_id("a"), entry_id("b")])).message.found == b"\0\0"
    assert client.call(good).message.statuses == b"\0\0"


def test_places_are_told_and_counted_like_a_lookup(client: RawClient, admin: Admin) -> None:
    stored = WrittenRun(client).commit(["a", "b"])
    before = admin.stats()["tiers"]["dram"]
    told = client.call(wire.Locate([entry_id("b"), entry_id("absent"), entry_id("a")])).message
    assert unpacked("I", told.slots)[::2] == unpacked("I", stored.slots)[::-1]
    assert unpacked("I", told.generations)[::2] == unpacked("I", stored.generations)[::-1]
    assert (unpacked("I", told.slots)[1], told.beyond) == (0, 0)
    after = admin.stats()["tiers"]["dram"]
    counted = [after[name] - before[name] for name in ("hits", "misses", "bytes_out")]
    assert counted == [2, 1, 2 * len(VALUE)]
    assert client.call(wire.Remove([entry_id("a")])).message.count == 1
    assert client.call(wire.Locate([entry_id("a")])).message.slots == bytes(4)


def test_a_hit_that_was_only_located_outlives_what_nobody_asked_for(
    store_daemon: StartStore,
) -> None:
    store = store_daemon("--dram", "1MiB", "--segment", "1MiB", "--eviction", "lru")
    with local_client(store.socket) as client:
        for number in range(8):
            client.put(f"old{number}", bytes(100 << 10))
        client.call(wire.Locate([entry_id("old0")]))
        for number in range(4):
            client.put(f"new{number}", bytes(100 << 10))
        found = client.call(wire.Locate([entry_id("old0"), entry_id("old1")])).message
        assert [bool(slot) for slot in unpacked("I", found.slots)] == [True, False]


def test_use_is_told_without_an_answer(client: RawClient, admin: Admin) -> None:
    reply = WrittenRun(client).commit(["a", "b"])
    looked_up = client.call(wire.Lookup([entry_id("a")], pin_s=0)).message
    before = admin.stats()["tiers"]["dram"]
    client.send(
        wire.NoteUse(
            reply.slots, reply.generations, read_bytes=3000, tickets=[looked_up.ticket, b"none"]
        )
    )
    stats = client.call(wire.GetStats())  # the next answer is this one's
    assert isinstance(stats.message, wire.StatsReply)
    after = admin.stats()
    assert after["tiers"]["dram"]["hits"] - before["hits"] == 2
    assert after["tiers"]["dram"]["bytes_out"] - before["bytes_out"] == 3000
    assert after["tickets"] == 0


@pytest.mark.parametrize(
    ("note", "payload"),
    [
        (wire.NoteUse(b"abc", b"abcd"), b""),
        (wire.NoteUse(bytes(4), bytes(8)), b""),
        (wire.NoteUse(bytes(4 * 20_000), bytes(4 * 20_000)), b""),
        (wire.NoteUse(b"", b"", read_bytes=-1), b""),
        (wire.NoteUse(b"", b"", tickets=[b"x"] * 20_000), b""),
        (wire.NoteUse(b"", b""), b"payload"),
    ],
)
def test_hostile_notes_are_counted_and_not_answered(
    client: RawClient, note: wire.NoteUse, payload: bytes
) -> None:
    client.send(note, payload)
    assert isinstance(client.call(wire.GetStats()).message, wire.StatsReply)


def test_a_version_1_client_that_tells_its_use_is_not_answered(daemon: StoreProcess) -> None:
    with local_client(daemon.socket, newest_version=1) as client:
        client.send(wire.NoteUse(b"", b""))
        assert client.put("a", b"x") == (PutStatus.STORED, "")


def test_notes_of_any_slots_and_generations(client: RawClient, admin: Admin) -> None:
    rng = random.Random(4)
    for _ in range(100):
        values = [rng.choice([0, 1, 2, 1000, (1 << 32) - 1]) for _ in range(2 * 50)]
        client.send(wire.NoteUse(packed("I", values[:50]), packed("I", values[50:])))
    assert isinstance(client.call(wire.GetStats()).message, wire.StatsReply)


def test_a_replaced_value_stays_whole_for_who_pinned_it(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        hello = client.hello()
        table_bytes = hello.message.slot_table_bytes
        with map_whole(hello.descriptors[0], table_bytes, mmap.ACCESS_READ) as table:
            client.put("a", b"first")
            pinned = client.call(wire.Lookup([entry_id("a")], pin_s=0)).message
            slot, generation = pinned.found[0][:2]
            client.put("a", b"second", if_exists="replace")
            words = memoryview(table)
            reader = SlotReader(words)
            assert not reader.is_current(slot, generation)
            assert reader.is_intact(slot, generation)
            old = client.call(wire.Read([slot], [generation], [0]))
            assert old.payload == b"first"
            client.call(wire.Unpin(pinned.ticket))
            assert not reader.is_intact(slot, generation)
            del reader
            words.release()


def test_the_daemons_heartbeat_is_in_the_slot_table(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        hello = client.hello()
        table_bytes = hello.message.slot_table_bytes
        with map_whole(hello.descriptors[0], table_bytes, mmap.ACCESS_READ) as table:
            words = memoryview(table).cast("Q")
            now = int(time.monotonic() * 1000)
            assert now - words[HEARTBEAT] < 10_000
            wait_until(lambda: words[HEARTBEAT] > now)
            wait_until(lambda: time.monotonic() * 1000 - words[HEARTBEAT] < BEAT_SECONDS * 1000)
            words.release()


def test_runs_of_a_connection_that_ends_are_given_back(daemon: StoreProcess, admin: Admin) -> None:
    def quarantined() -> int:
        num_bytes: int = admin.stats()["tiers"]["dram"]["quarantined_bytes"]
        return num_bytes

    before = quarantined()  # of other tests' clients: this process still lives
    with local_client(daemon.socket) as client:
        WrittenRun(client).commit(["a"])
        assert admin.stats()["runs"] == 1
        instance = client.instance
    wait_until(lambda: admin.stats()["runs"] == 0)
    assert quarantined() - before == RUN_BYTES - len(VALUE)
    with local_client(daemon.socket, instance, quiesced=True) as again:
        assert quarantined() == before
        assert again.get("a") == VALUE
