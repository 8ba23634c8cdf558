"""FetchBlocks: every block reserved at once, filled while it is written elsewhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from moontide.kvstore import BlockKey, BlockStore, JobResult, JobStatus, PrefixHit, Shard

from ....store_process import StoreProcess
from ....waiting import wait_until, within
from ...client.helpers import (
    NAMESPACE,
    SECONDS,
    block_bytes,
    buffers_for,
    client_of,
    layers_of,
    result_of,
)

PROMPTS: Iterator[range] = (range(start, start + 100) for start in itertools.count(500_000, 1000))
REQUEST = BlockKey(b"request-block-01")


def fetched(
    kv: BlockStore,
    tokens: range,
    source: str,
    request_block: BlockKey | None = None,
    deadline_s: float = SECONDS,
) -> JobResult:
    job = kv.submit_fetch(
        tokens, source=source, request_block=request_block, pin_s=SECONDS, deadline_s=deadline_s
    )
    return result_of(kv, job)


def check_layers_arrive(
    first: BlockStore, second: BlockStore, tokens: range, hit: PrefixHit
) -> None:
    """Each as soon as the first node has written it."""
    content = layers_of(first, first.keys(tokens))
    with first.writer(tokens, timeout_s=SECONDS) as writer:
        for layer in range(4):
            writer.layer(layer, content[layer])
            buffers = buffers_for(second, [layer], 6)
            job = second.submit_load(hit.ticket, [layer], buffers, deadline_s=SECONDS)
            assert result_of(second, job).status is JobStatus.DONE
            assert buffers[0] == content[layer]


def test_layers_arrive_while_their_writer_still_writes(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens, (first, second) = next(PROMPTS), stores
    result = fetched(second, tokens, nodes[0].instance)  # nothing is there yet
    assert result.hit is not None
    assert len(result.hit.blocks) == 6
    assert set(result.hit.transports) == {"tcp"}
    check_layers_arrive(first, second, tokens, result.hit)
    second.release(result.hit.ticket)


def test_the_last_partial_block_comes_under_its_own_key(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens, (first, second) = next(PROMPTS), stores
    result = fetched(second, tokens, nodes[0].instance, REQUEST)
    assert result.hit is not None
    assert result.hit.blocks[-1] == REQUEST
    keys = first.keys(tokens)
    content = layers_of(first, [*keys, REQUEST])
    with first.writer(tokens, timeout_s=SECONDS) as writer:
        for layer in range(4):
            writer.layer(layer, content[layer][:6])
    handle = first.begin_request_store(REQUEST, ttl_s=5.0, deadline_s=SECONDS)
    for layer in range(4):
        tail = [block_bytes(REQUEST, layer, first.layer_bytes(layer))]
        store = first.submit_store(handle, layer, tail, deadline_s=SECONDS)
        assert result_of(first, store).status is JobStatus.DONE
    assert result_of(first, first.commit(handle)).status is JobStatus.DONE
    buffers = buffers_for(second, range(4), 7)
    job = second.submit_load(result.hit.ticket, range(4), buffers, deadline_s=SECONDS)
    assert result_of(second, job).status is JobStatus.DONE
    assert buffers == content
    second.release(result.hit.ticket)


def test_within_one_store_nothing_is_copied(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens, (first, _) = next(PROMPTS), stores
    job = first.submit_fetch(
        tokens, source=nodes[0].instance, request_block=None, pin_s=SECONDS, deadline_s=SECONDS
    )
    content = layers_of(first, first.keys(tokens))
    with first.writer(tokens, timeout_s=SECONDS) as writer:
        result = result_of(first, job)
        assert result.hit is not None
        assert len(result.hit.blocks) == 6
        assert set(result.hit.transports) == {"shm"}
        for layer in range(4):
            writer.layer(layer, content[layer])
    first.release(result.hit.ticket)


def test_r17_two_stores_that_wait_for_the_same_blocks_do_not_hold_each_other(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    """One prompt at two pairs of workers, crosswise, and both prefill workers are lost."""
    tokens = next(PROMPTS)
    tickets = []
    for kv, source in zip(stores, reversed(nodes), strict=True):
        result = fetched(kv, tokens, source.instance, deadline_s=60.0)
        assert result.hit is not None
        tickets.append(result.hit.ticket)
    deadline = time.monotonic() + 0.3
    with client_of(nodes[0]) as client:
        while time.monotonic() < deadline and client.stats()["tickets"] == 1:
            time.sleep(0.01)  # as long as it would take them to pin each other's
    for kv, ticket in zip(stores, tickets, strict=True):
        kv.release(ticket)  # the fixture waits until nothing is left


def test_layers_arrive_while_their_store_waits_for_the_same_blocks(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens, (first, second) = next(PROMPTS), stores
    crosswise = fetched(first, tokens, nodes[1].instance)
    result = fetched(second, tokens, nodes[0].instance)
    assert crosswise.hit is not None
    assert result.hit is not None
    check_layers_arrive(first, second, tokens, result.hit)
    first.release(crosswise.hit.ticket)
    second.release(result.hit.ticket)


def test_an_unknown_source_is_refused_by_name(stores: tuple[BlockStore, BlockStore]) -> None:
    result = fetched(stores[1], next(PROMPTS), "node-a/1/" + "00" * 16)
    assert result.status is not JobStatus.DONE
    assert "node-a/1/" in result.reason


def test_r17_a_fetch_that_nobody_holds_any_more_ends_within_5_seconds(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    result = fetched(stores[1], next(PROMPTS), nodes[0].instance, REQUEST)
    assert result.hit is not None
    stores[1].release(result.hit.ticket)  # the fixture waits until nothing is left


@pytest.mark.parametrize("layers_written", [0, 2])
def test_a_writer_that_gives_up_costs_its_reader_the_deadline_and_no_more(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore], layers_written: int
) -> None:
    tokens, (first, second) = next(PROMPTS), stores
    job = second.submit_fetch(
        tokens, source=nodes[0].instance, request_block=None, pin_s=SECONDS, deadline_s=1.5
    )
    result = result_of(second, job)
    assert result.hit is not None
    handle = first.begin_store(tokens, deadline_s=SECONDS)
    content = layers_of(first, first.keys(tokens))
    for layer in range(layers_written):
        stored = first.submit_store(handle, layer, content[layer], deadline_s=SECONDS)
        assert result_of(first, stored).status is JobStatus.DONE
    first.abort(handle)
    buffers = buffers_for(second, range(4), 6)
    load = second.submit_load(result.hit.ticket, range(4), buffers, deadline_s=SECONDS)
    ended = result_of(second, load)
    assert ended.status is not JobStatus.DONE
    assert len(ended.failed_blocks) == 6
    second.release(result.hit.ticket)
    wait_until(lambda: second.lookup(tokens).num_tokens == 0)


def test_what_its_writer_stored_in_other_shards_ends_at_once(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens, (first, second) = next(PROMPTS), stores
    content, half = layers_of(first, first.keys(tokens)), first.layer_bytes(0) // 2
    with client_of(nodes[0]) as client:
        for rank in range(2):
            shard = Shard(0, (0, 4), (2 * rank, 2 * rank + 2))
            with client.kv(NAMESPACE, shard=shard) as kv, kv.writer(tokens) as writer:
                for layer in range(4):
                    part = slice(rank * half, (rank + 1) * half)
                    writer.layer(layer, [block[part] for block in content[layer]])
    hit = fetched(second, tokens, nodes[0].instance).hit
    assert hit is not None
    with within(SECONDS / 2):
        load = second.submit_load(hit.ticket, [0], buffers_for(second, [0], 6), deadline_s=SECONDS)
        assert result_of(second, load).failed_blocks == tuple(range(6))
    second.release(hit.ticket)
