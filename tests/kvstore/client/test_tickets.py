"""Tickets: pins of a lookup that any connection to the daemon may use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moontide.kvstore import (
    BlockStore,
    InvalidRequest,
    JobStatus,
    Shard,
    StoreClient,
)

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .helpers import (
    NAMESPACE,
    SECONDS,
    TOKENS,
    buffers_for,
    client_of,
    layers_of,
    result_of,
    write_prompt,
)


def test_a_ticket_is_renewed_and_released_by_any_connection(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore
) -> None:
    write_prompt(kv, TOKENS)
    with client_of(daemon) as other, other.kv(NAMESPACE) as other_kv:
        ticket = kv.lookup(TOKENS, pin_s=1.0).ticket
        kv.lookup(TOKENS, pin_s=1.0)
        other_kv.renew(ticket.id, ttl_s=60)
        wait_until(lambda: client.stats()["tickets"] == 1)  # the other one has expired
        assert client.stats()["pins"] == 6
        other_kv.release(ticket.id)
        wait_until(lambda: client.stats()["pins"] == 0)
    expiring = kv.lookup(TOKENS, pin_s=0.05).ticket
    assert expiring.id
    wait_until(lambda: client.stats()["pins"] == 0)
    buffers = buffers_for(kv, [1], 6)
    job = kv.submit_load(expiring, [1], buffers, deadline_s=SECONDS)
    assert result_of(kv, job).status is JobStatus.DONE  # still there: right all the same


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_another_client_loads_with_a_ticket(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore, transport: str
) -> None:
    """What one client matched and pinned, another loads, though nobody can find it any more and
    whoever matched it has gone."""
    write_prompt(kv, TOKENS)
    with client_of(daemon) as matcher, matcher.kv(NAMESPACE) as matcher_kv:
        ticket = matcher_kv.lookup(TOKENS, pin_s=60).ticket
    client.clear()
    assert kv.lookup(TOKENS).num_tokens == 0
    with client_of(daemon, transport) as other, other.kv(NAMESPACE) as other_kv:
        layers = list(range(kv.num_layers))
        buffers = buffers_for(kv, layers, 6)
        job = other_kv.submit_load(ticket, layers, buffers, deadline_s=SECONDS)
        assert result_of(other_kv, job).status is JobStatus.DONE
        assert buffers == layers_of(kv, kv.keys(TOKENS))
        other_kv.release(ticket)
        wait_until(lambda: client.stats()["pins"] == 0)


def test_a_ticket_loads_only_what_was_looked_up(client: StoreClient, kv: BlockStore) -> None:
    write_prompt(kv, TOKENS)
    ticket = kv.lookup(TOKENS).ticket
    half = Shard(0, (0, 4), (0, 2))
    for other in (
        client.kv(replace(NAMESPACE, salt="other tenant")),
        client.kv(NAMESPACE, shard=half),
    ):
        buffers = buffers_for(other, [0], 6)
        with pytest.raises(InvalidRequest, match=r"a ticket for .* in a block store of "):
            other.submit_load(ticket, [0], buffers, deadline_s=SECONDS)


def test_a_ticket_of_another_daemon_is_refused(
    store_daemon: StartStore, client: StoreClient, kv: BlockStore
) -> None:
    """Both have entries at the same places."""
    write_prompt(kv, TOKENS)
    ticket = kv.lookup(TOKENS).ticket
    with client_of(store_daemon()) as stranger, stranger.kv(NAMESPACE) as stranger_kv:
        write_prompt(stranger_kv, range(100, 200))
        buffers = buffers_for(kv, [0], 6)
        job = stranger_kv.submit_load(ticket, [0], buffers, deadline_s=SECONDS)
        result = result_of(stranger_kv, job)
        assert result.status is JobStatus.FAILED
        assert result.failed_blocks == tuple(range(6))
        assert buffers == buffers_for(kv, [0], 6)
