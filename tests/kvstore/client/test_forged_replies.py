"""A daemon that answers wrongly costs a connection, never a wrong byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from moontide.kvstore import JobStatus, StoreClient, connect, wire

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


@contextlib.contextmanager
def relay_client(daemon: StoreProcess, relay: Relay) -> Iterator[StoreClient]:
    """A client that hears what `relay` makes of the daemon's replies; the store is empty."""
    with connect(relay.address, token=daemon.token, timeout_s=SECONDS) as client:
        client.clear()
        yield client


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
def test_r16_a_forged_answer_ends_the_connection_only(
    daemon: StoreProcess, forged: wire.Reply
) -> None:
    with (
        Relay(daemon.listen or "") as relay,
        relay_client(daemon, relay) as client,
        client.kv(NAMESPACE) as kv,
        other_store(daemon) as source,
        source.writer(TOKENS) as writer,
    ):
        content = layers_of(source, source.keys(TOKENS))
        writer.layer(0, content[0])
        hit = hit_under_way(kv, TOKENS)
        relay.alter = lambda reply: forged if isinstance(reply, wire.ExtentsReply) else reply
        buffers = buffers_for(kv, [1], 6)
        job = kv.submit_load(hit.ticket, [1], buffers, deadline_s=SECONDS)
        writer.layer(1, content[1])
        result = result_of(kv, job)
        assert result.status is JobStatus.FAILED
        assert result.reason.startswith("unavailable: ")
        assert buffers == buffers_for(kv, [1], 6)
        relay.alter = lambda reply: reply
        assert kv.load(hit.ticket, [1], buffers).status is JobStatus.DONE
        assert buffers == [content[1]]
        for layer in (2, 3):
            writer.layer(layer, content[layer])


def test_a_busy_daemon_is_asked_again(daemon: StoreProcess) -> None:
    with (
        Relay(daemon.listen or "") as relay,
        relay_client(daemon, relay) as client,
        client.kv(NAMESPACE) as kv,
        other_store(daemon) as source,
        source.writer(TOKENS) as writer,
    ):
        content = layers_of(source, source.keys(TOKENS))
        writer.layer(0, content[0])
        hit = hit_under_way(kv, TOKENS)
        refusals = iter([wire.Failure("busy", "later"), wire.Failure("timeout", "not yet")])

        def alter(reply: wire.Reply) -> wire.Reply:
            return next(refusals, reply) if isinstance(reply, wire.ExtentsReply) else reply

        relay.alter = alter
        writer.layer(1, content[1])
        buffers = buffers_for(kv, [1], 6)
        assert kv.load(hit.ticket, [1], buffers).status is JobStatus.DONE
        assert buffers == [content[1]]
        assert next(refusals, None) is None
        relay.alter = lambda reply: (
            wire.Failure("invalid_request", "no") if isinstance(reply, wire.ExtentsReply) else reply
        )
        refused = kv.load(hit.ticket, [1], buffers)
        assert (refused.status, refused.failed_blocks) == (JobStatus.FAILED, tuple(range(6)))
        assert refused.reason == "invalid_request: no"
        for layer in (2, 3):
            writer.layer(layer, content[layer])
        kv.release(hit.ticket)


def test_a_wrong_checksum_is_corrupt_not_handed_out(daemon: StoreProcess) -> None:
    with (
        Relay(daemon.listen or "") as relay,
        relay_client(daemon, relay) as client,
        client.kv(NAMESPACE) as kv,
        other_store(daemon) as source,
        source.writer(TOKENS) as writer,
    ):
        content = layers_of(source, source.keys(TOKENS))
        hit = hit_under_way(kv, TOKENS)

        def alter(reply: wire.Reply) -> wire.Reply:
            if not isinstance(reply, wire.ExtentsReply):
                return reply
            sums = bytearray(reply.checksums)
            sums[8 * 4] ^= 1
            return wire.ExtentsReply(reply.complete, bytes(sums))

        relay.alter = alter
        buffers = buffers_for(kv, [0], 6)
        job = kv.submit_load(hit.ticket, [0], buffers, deadline_s=SECONDS)
        for layer in range(4):
            writer.layer(layer, content[layer])
        result = result_of(kv, job)
        assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (4,))
        assert result.reason.startswith("corrupt: ")
        assert client.counters.corrupt == 1
        kv.release(hit.ticket)
