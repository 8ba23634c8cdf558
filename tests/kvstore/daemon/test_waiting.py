"""Waiting for what is not there yet, over the wire: blocks to appear, layers to be complete."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from moontide.kvstore import wire

from ...store_process import StoreProcess
from ...waiting import wait_until, within
from .admin import Admin
from .raw_client import RawClient, local_client
from .test_protocol import KEYS, SHARD, open_namespace

COVERAGE = [SHARD.pack()]
NUM_LAYERS = 2
Places = tuple[list[int], list[int]]


@pytest.fixture
def admin(daemon: StoreProcess) -> Iterator[Admin]:
    admin = Admin(daemon.admin, daemon.token)
    yield admin
    admin.post("/v1/clear")
    wait_until(lambda: admin.stats()["clients"] == 0)
    admin.check_at_rest()


def plain_client(daemon: StoreProcess) -> RawClient:
    """Without shared memory: what it leaves behind needs no quarantine."""
    return local_client(daemon.socket, boot_id="another boot")


@pytest.fixture
def writer(daemon: StoreProcess, admin: Admin) -> Iterator[RawClient]:
    with plain_client(daemon) as client:
        yield client


@pytest.fixture
def reader(daemon: StoreProcess, admin: Admin) -> Iterator[RawClient]:
    with plain_client(daemon) as client:
        yield client


def told(answer: Any) -> str:
    assert isinstance(answer.message, wire.Failure), answer
    return answer.message.message


def reserve(client: RawClient, keys: Sequence[bytes] = KEYS[:1], **options: Any) -> Places:
    message = wire.ReserveBlocks(open_namespace(client), b"".join(keys), b"", COVERAGE, **options)
    results = client.call(message).message.results
    return [result[1] for result in results], [result[2] for result in results]


def look(client: RawClient, key: bytes = KEYS[0], **options: Any) -> wire.LookupBlocks:
    return wire.LookupBlocks(open_namespace(client), key, COVERAGE, **options)


def finish(client: RawClient, places: Places) -> None:
    for layer in range(NUM_LAYERS):
        client.call(wire.Advance(*places, layer, [layer + 1] * len(places[0])))
    client.call(wire.Commit(*places, []))


def test_a_lookup_waits_for_a_block_that_somebody_begins_to_write(
    writer: RawClient, reader: RawClient
) -> None:
    reader.send(look(reader, pending=True, wait_s=10.0, local_only=True))
    reserve(writer)
    (block,) = reader.receive().message.blocks
    assert block[0].extents == 0


def test_a_lookup_without_pending_waits_for_the_commit(
    writer: RawClient, reader: RawClient
) -> None:
    reader.send(look(reader, wait_s=10.0))
    places = reserve(writer)
    for layer in range(NUM_LAYERS):
        writer.call(wire.Advance(*places, layer, [layer + 1]))
    writer.call(wire.Commit(*places, []))
    (block,) = reader.receive().message.blocks
    assert block[0].extents == NUM_LAYERS


def test_a_lookup_that_waits_in_vain_is_a_miss(reader: RawClient) -> None:
    begun = time.monotonic()
    with within(1.0):
        assert reader.call(look(reader, wait_s=0.05)).message.blocks == []
    assert time.monotonic() - begun >= 0.05


def test_who_waits_and_goes_leaves_nothing(daemon: StoreProcess, writer: RawClient) -> None:
    with plain_client(daemon) as gone:
        gone.send(look(gone, wait_s=30.0))
    finish(writer, reserve(writer))
    assert len(writer.call(look(writer)).message.blocks) == 1


def test_many_extents_are_awaited_at_once(writer: RawClient, reader: RawClient) -> None:
    """Each with its own checksum; one whose writer gave up is told as not complete."""
    slots, generations = reserve(writer, KEYS[:2])
    reader.send(wire.AwaitExtents(slots, generations, 0, 10.0))
    writer.call(wire.Advance(slots[:1], generations[:1], 0, [77]))
    writer.call(wire.Abort(slots[:1], generations[:1]))
    writer.call(wire.Abort(slots[1:], generations[1:]))
    reply = reader.receive().message
    assert reply.complete == b"\1\0"
    assert array("Q", reply.checksums).tolist() == [77, 0]


def test_r16_waits_for_what_nobody_has_are_refused_and_leave_no_watch(
    writer: RawClient, reader: RawClient
) -> None:
    slots, generations = reserve(writer)
    wrong = wire.AwaitExtents([*slots, *slots], [*generations, *generations], NUM_LAYERS, 5.0)
    assert "it has 2" in told(reader.call(wrong))
    unknown = reader.call(wire.AwaitExtents([slots[0] + 1000], [7], 0, 5.0)).message
    assert unknown.complete == b"\0"
    finish(writer, (slots, generations))


def test_request_scoped_blocks_end_by_themselves(
    writer: RawClient, reader: RawClient, admin: Admin
) -> None:
    key = bytes(range(16))
    places = reserve(writer, [key], ttl_s=0.2, request_scoped=True)
    finish(writer, places)
    assert admin.get("/v1/blocks")["entries"] == []
    wait_until(lambda: reader.call(look(reader, key)).message.blocks == [])
    assert admin.stats()["request_scoped"] == 0


def test_request_scoped_without_an_end_is_refused(writer: RawClient) -> None:
    message = wire.ReserveBlocks(
        open_namespace(writer), KEYS[0], b"", COVERAGE, request_scoped=True
    )
    assert "ttl_s" in told(writer.call(message))


def test_the_stores_own_name_is_taken(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        assert "this store's own" in told(client.hello(client=daemon.instance))
