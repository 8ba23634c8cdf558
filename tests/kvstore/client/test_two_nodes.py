"""Two stores of one cluster: what a client of one node wrote, a client of the other reads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import (
    BlockStore,
    JobStatus,
    PrefixHit,
    StoreClient,
    Tier,
)

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until, within
from .conftest import FLAGS
from .helpers import (
    NAMESPACE,
    SECONDS,
    buffers_for,
    check_prompt,
    client_of,
    layers_of,
    result_of,
    write_prompt,
)

GUARD = 0xA5
PROMPTS: Iterator[range] = (range(start, start + 100) for start in itertools.count(0, 1000))


@pytest.fixture
def writer(nodes: list[StoreProcess]) -> Iterator[BlockStore]:
    with client_of(nodes[0]) as client, client.kv(NAMESPACE) as kv:
        yield kv


@pytest.fixture
def reader(reading_client: StoreClient) -> Iterator[BlockStore]:
    with reading_client.kv(NAMESPACE) as kv:
        yield kv


def found(kv: BlockStore, tokens: range) -> PrefixHit:
    """Polls lookups, each released, until all of it is found; the hit of the first such one."""
    hits: list[PrefixHit] = []

    def look() -> bool:
        result = result_of(kv, kv.submit_lookup(tokens, pin_s=SECONDS, deadline_s=SECONDS))
        assert result.hit is not None
        if result.hit.num_tokens < len(tokens) // 16 * 16:
            kv.release(result.hit.ticket)
            return False
        hits.append(result.hit)
        return True

    wait_until(look)
    return hits[0]


# -- blocks -----------------------------------------------------------------------------


def test_an_engine_loads_what_another_node_computed(writer: BlockStore, reader: BlockStore) -> None:
    """By submit and poll; the evidence says from where and how, and the next time it is here."""
    tokens = next(PROMPTS)
    write_prompt(writer, tokens)
    hit = found(reader, tokens)
    assert hit.tiers == (Tier.DRAM,) * 6
    assert hit.blocks == tuple(writer.keys(tokens))
    assert set(hit.transports) <= {"tcp", "shm"}  # shm: what an earlier lookup brought
    buffers = buffers_for(reader, range(4), 6)
    job = reader.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
    assert result_of(reader, job).status is JobStatus.DONE
    assert buffers == layers_of(writer, writer.keys(tokens))
    again = buffers_for(reader, range(4), 6)
    assert reader.load(hit.ticket, range(4), again).status is JobStatus.DONE
    assert again == buffers
    reader.release(hit.ticket)
    kept = reader.lookup(tokens)
    assert kept.transports == ("shm",) * 6
    assert check_prompt(reader, tokens) == 96


def test_a_ticket_of_blocks_under_way_loads_each_layer_by_itself(
    writer: BlockStore, reader: BlockStore
) -> None:
    tokens = next(PROMPTS)
    content = layers_of(writer, writer.keys(tokens))
    write_prompt(writer, tokens)
    hit = found(reader, tokens)
    rows = [buffers_for(reader, [layer], 6) for layer in range(4)]
    jobs = [
        reader.submit_load(hit.ticket, [layer], rows[layer], deadline_s=SECONDS)
        for layer in (3, 1, 0, 2)
    ]
    results = {}
    wait_until(lambda: results.update({r.job: r for r in reader.poll()}) or len(results) == 4)
    assert [results[job].status for job in jobs] == [JobStatus.DONE] * 4
    assert [row[0] for row in rows] == content
    reader.release(hit.ticket)


def test_r10_a_cancelled_load_of_a_hand_off_touches_nothing_more(
    nodes: list[StoreProcess], writer: BlockStore, reader: BlockStore
) -> None:
    """The blocks go on arriving in the pool; the buffers belong to someone else by then."""
    tokens = next(PROMPTS)
    content = layers_of(writer, writer.keys(tokens))
    fetch = reader.submit_fetch(tokens, source=nodes[0].instance, deadline_s=SECONDS)
    hit = result_of(reader, fetch).hit
    assert hit is not None
    assert (hit.num_tokens, hit.transports) == (96, ("tcp",) * 6)
    buffers = buffers_for(reader, range(4), 6)
    with writer.writer(tokens, timeout_s=SECONDS) as stream:
        job = reader.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
        stream.layer(0, content[0])
        wait_until(lambda: buffers[0] == content[0])
        reader.cancel(job)
        assert result_of(reader, job).status is JobStatus.CANCELLED
        for row in buffers:
            for buffer in row:
                buffer[:] = bytes([GUARD]) * len(buffer)
        for layer in (1, 2, 3):
            stream.layer(layer, content[layer])
    fresh = buffers_for(reader, range(4), 6)
    assert reader.load(hit.ticket, range(4), fresh).status is JobStatus.DONE
    assert fresh == content
    assert {byte for row in buffers for buffer in row for byte in set(buffer)} == {GUARD}
    reader.release(hit.ticket)


def test_r09_blocks_that_the_source_never_writes_have_failed(
    nodes: list[StoreProcess], writer: BlockStore, reader: BlockStore
) -> None:
    """Of a hand-off's six blocks four are written, then its time is over."""
    tokens = next(PROMPTS)
    fetch = reader.submit_fetch(tokens, source=nodes[0].instance, deadline_s=1.0)
    hit = result_of(reader, fetch).hit
    assert hit is not None
    assert hit.num_tokens == 96
    buffers = buffers_for(reader, range(4), 6)
    job = reader.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
    write_prompt(writer, tokens[:64])
    result = result_of(reader, job)
    assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (4, 5))
    content = layers_of(writer, writer.keys(tokens))
    assert [row[:4] for row in buffers] == [layer[:4] for layer in content]
    reader.release(hit.ticket)
    assert check_prompt(reader, tokens) == 64


def test_r21_r09_a_stopped_peer_costs_the_deadline_and_no_more(
    nodes: list[StoreProcess], writer: BlockStore, reader: BlockStore
) -> None:
    """While node a is stopped: lookups at node b still tell what is here, loads of what was on its
    way end at their deadline."""
    here, there = next(PROMPTS), next(PROMPTS)
    write_prompt(reader, here)
    with writer.writer(there, timeout_s=SECONDS) as stream:
        fetch = reader.submit_fetch(there, source=nodes[0].instance, deadline_s=SECONDS)
        hit = result_of(reader, fetch).hit
        assert hit is not None
        content = layers_of(writer, writer.keys(there))
        stream.layer(0, content[0])
        buffers = buffers_for(reader, range(4), 6)
        assert reader.load(hit.ticket, [0], buffers[:1]).status is JobStatus.DONE
        with nodes[0].stopped():
            started = time.monotonic()
            with within(2.0):
                job = reader.submit_load(hit.ticket, range(4), buffers, deadline_s=0.5)
                assert reader.lookup([*here, *range(5)], timeout_s=2.0).num_tokens == 96
                result = result_of(reader, job)
            assert result.status is JobStatus.TIMED_OUT
            assert result.failed_blocks == tuple(range(6))
            assert time.monotonic() - started >= 0.5
            with within(0.55 + 0.3):
                late = reader.submit_lookup(next(PROMPTS), deadline_s=0.5)
                assert result_of(reader, late).status is JobStatus.DONE  # what is here: nothing
        for layer in (1, 2, 3):
            stream.layer(layer, content[layer])
    reader.release(hit.ticket)


def test_r09_r25_a_source_that_dies_costs_its_blocks_only(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    source, own = start_nodes(store_daemon, tmp_path, 2, *FLAGS)
    tokens = next(PROMPTS)
    with client_of(own) as client, client.kv(NAMESPACE) as reader:
        write_prompt(reader, tokens[:32])
        with client_of(source) as other, other.kv(NAMESPACE) as writer:
            fetch = reader.submit_fetch(tokens, source=source.instance, deadline_s=SECONDS)
            hit = result_of(reader, fetch).hit
            assert hit is not None
            content = layers_of(writer, writer.keys(tokens))
            handle = writer.begin_store(tokens, first_block=2, deadline_s=SECONDS)
            for layer in (0, 1):
                job = writer.submit_store(handle, layer, content[layer][2:], deadline_s=SECONDS)
                assert result_of(writer, job).status is JobStatus.DONE
            buffers = buffers_for(reader, range(4), 6)
            job = reader.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
            wait_until(lambda: buffers[1] == content[1])
            source.kill()
            result = result_of(reader, job)
            assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (2, 3, 4, 5))
            assert [row[:2] for row in buffers] == [layer[:2] for layer in content]
        gone, _ = source.instance, source.start()  # under the same name, empty
        refused = reader.submit_fetch(tokens, source=gone, deadline_s=SECONDS)
        result = result_of(reader, refused)
        assert result.status is JobStatus.FAILED
        assert "node-a" in result.reason
        assert check_prompt(reader, tokens) == 32
        reader.release(hit.ticket)
