"""A daemon that answers wrongly costs a connection, never a wrong byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from moontide.kvstore import BlockStore, BlockWriter, JobStatus, StoreClient, connect, wire

from ...store_process import StoreProcess
from .helpers import (
    NAMESPACE,
    SECONDS,
    TOKENS,
    buffers_for,
    hit_under_way,
    layers_of,
    other_store,
    result_of,
)
from .relay import Relay


@dataclass(frozen=True, slots=True)
class Scene:
    """TOKENS being written, and a client that hears what `relay` makes of the daemon's replies."""

    relay: Relay
    client: StoreClient
    kv: BlockStore
    writer: BlockWriter
    content: list[list[bytes]]

    def write(self, *layers: int) -> None:
        for layer in layers:
            self.writer.layer(layer, self.content[layer])

    def alter(self, alter: Callable[[wire.ExtentsReply], wire.Reply]) -> None:
        """Of what the daemon tells of awaited layers."""
        self.relay.alter = lambda reply: (
            alter(reply) if isinstance(reply, wire.ExtentsReply) else reply
        )


@pytest.fixture
def scene(daemon: StoreProcess) -> Iterator[Scene]:
    with (
        Relay(daemon.listen or "") as relay,
        connect(relay.address, token=daemon.token, timeout_s=SECONDS) as client,
    ):
        client.clear()
        with (
            client.kv(NAMESPACE) as kv,
            other_store(daemon) as source,
            source.writer(TOKENS) as writer,
        ):
            yield Scene(relay, client, kv, writer, layers_of(source, source.keys(TOKENS)))


@pytest.mark.parametrize(
    "forged",
    [
        wire.ExtentsReply(b"\1" * 5, bytes(48)),
        wire.ExtentsReply(b"\1" * 6, bytes(47)),
        wire.ExtentsReply(b"", b""),
        wire.Ok(),
    ],
    ids=["few", "short", "empty", "other"],
)
def test_r16_a_forged_answer_ends_the_connection_only(scene: Scene, forged: wire.Reply) -> None:
    kv, content = scene.kv, scene.content
    scene.write(0)
    hit = hit_under_way(kv, TOKENS)
    scene.alter(lambda reply: forged)
    buffers = buffers_for(kv, [1], 6)
    job = kv.submit_load(hit.ticket, [1], buffers, deadline_s=SECONDS)
    scene.write(1)
    result = result_of(kv, job)
    assert result.status is JobStatus.FAILED
    assert result.reason.startswith("unavailable: ")
    assert buffers == buffers_for(kv, [1], 6)
    scene.alter(lambda reply: reply)
    assert kv.load(hit.ticket, [1], buffers).status is JobStatus.DONE
    assert buffers == [content[1]]
    scene.write(2, 3)


def test_a_busy_daemon_is_asked_again(scene: Scene) -> None:
    kv = scene.kv
    scene.write(0)
    hit = hit_under_way(kv, TOKENS)
    refusals = iter([wire.Failure("busy", "later"), wire.Failure("timeout", "not yet")])
    scene.alter(lambda reply: next(refusals, reply))
    scene.write(1)
    buffers = buffers_for(kv, [1], 6)
    assert kv.load(hit.ticket, [1], buffers).status is JobStatus.DONE
    assert buffers == [scene.content[1]]
    assert next(refusals, None) is None
    scene.alter(lambda reply: wire.Failure("invalid_request", "no"))
    refused = kv.load(hit.ticket, [1], buffers)
    assert (refused.status, refused.failed_blocks) == (JobStatus.FAILED, tuple(range(6)))
    assert refused.reason == "invalid_request: no"
    scene.write(2, 3)
    kv.release(hit.ticket)


def test_a_wrong_checksum_is_corrupt_not_handed_out(scene: Scene) -> None:
    kv = scene.kv
    hit = hit_under_way(kv, TOKENS)

    def with_a_wrong_sum(reply: wire.ExtentsReply) -> wire.Reply:
        sums = bytearray(reply.checksums)
        sums[8 * 4] ^= 1
        return wire.ExtentsReply(reply.complete, bytes(sums))

    scene.alter(with_a_wrong_sum)
    buffers = buffers_for(kv, [0], 6)
    job = kv.submit_load(hit.ticket, [0], buffers, deadline_s=SECONDS)
    scene.write(0, 1, 2, 3)
    result = result_of(kv, job)
    assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (4,))
    assert result.reason.startswith("corrupt: ")
    assert scene.client.counters.corrupt == 1
    kv.release(hit.ticket)
