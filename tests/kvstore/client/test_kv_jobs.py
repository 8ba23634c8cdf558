"""KV blocks: stored layer by layer, found by prefix, loaded verified; by jobs and by streams."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import wait

import pytest
import xxhash

from moontide.kvstore import (
    BlockStore,
    Busy,
    Corrupt,
    Group,
    InvalidRequest,
    JobId,
    JobResult,
    JobStatus,
    KVLayout,
    Namespace,
    PrefixHit,
    ReserveStatus,
    StoreClient,
    StoreTimeout,
    ViewExpired,
    kv_entry_id,
    wire,
)
from moontide.kvstore.client.blocks import desk

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from .helpers import (
    LAYOUT,
    NAMESPACE,
    SECONDS,
    TOKENS,
    Scribbler,
    buffers_for,
    check_prompt,
    client_of,
    layers_of,
    result_of,
    write_prompt,
)

# -- store, find, load ------------------------------------------------------------


def test_an_engine_stores_finds_and_loads_by_jobs(kv: BlockStore) -> None:
    keys = kv.keys(TOKENS)
    content = layers_of(kv, keys)
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    jobs = [
        kv.submit_store(store, layer, content[layer], deadline_s=SECONDS)
        for layer in range(kv.num_layers)
    ]
    jobs.append(kv.commit(store))
    assert wait([kv], SECONDS)
    results = []
    wait_until(lambda: results.extend(kv.poll()) or len(results) == len(jobs))
    assert [result.job for result in results] == jobs
    assert {result.status for result in results} == {JobStatus.DONE}
    assert store.statuses == (ReserveStatus.RESERVED,) * 6
    assert not wait([kv], 0)

    hit = result_of(kv, kv.submit_lookup(TOKENS, deadline_s=SECONDS)).hit
    assert hit is not None
    assert (hit.num_tokens, hit.blocks, hit.tiers) == (96, tuple(keys), ("dram",) * 6)
    layers, blocks = [3, 0], [5, 2]
    buffers = buffers_for(kv, layers, len(blocks))
    job = kv.submit_load(hit.ticket, layers, buffers, blocks=blocks, deadline_s=SECONDS)
    assert result_of(kv, job).status is JobStatus.DONE
    assert buffers == [[content[layer][block] for block in blocks] for layer in layers]
    kv.release(hit.ticket)


def test_r03_only_full_blocks_are_stored_and_found(kv: BlockStore) -> None:
    write_prompt(kv, TOKENS)
    for length in (15, 16, 17, 31, 32, 33, 95, 96, 97):
        expected = length // 16 * 16
        assert kv.lookup(TOKENS[:length]).num_tokens == expected
        longer = [*TOKENS[:length], *range(5000, 5040)]
        assert kv.lookup(longer).num_tokens == expected


def test_nothing_is_found_before_the_commit_nor_after_an_abort(kv: BlockStore) -> None:
    content = layers_of(kv, kv.keys(TOKENS))
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    for layer in range(kv.num_layers):
        job = kv.submit_store(store, layer, content[layer], deadline_s=SECONDS)
        assert result_of(kv, job).status is JobStatus.DONE
    assert kv.lookup(TOKENS).num_tokens == 0
    kv.abort(store)
    assert result_of(kv, store.job).status is JobStatus.CANCELLED
    assert kv.lookup(TOKENS).num_tokens == 0
    with kv.writer(TOKENS) as writer:
        writer.layer(0, content[0])
        writer.abort()
    assert kv.lookup(TOKENS).num_tokens == 0


def test_blocks_that_are_there_are_not_written_again(kv: BlockStore) -> None:
    write_prompt(kv, TOKENS[:48])
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    wait_until(lambda: store.statuses is not None)
    assert store.statuses == (ReserveStatus.EXISTS,) * 3 + (ReserveStatus.RESERVED,) * 3
    for layer, content in enumerate(layers_of(kv, kv.keys(TOKENS))):
        sources = [None, None, None, *content[3:]]
        kv.submit_store(store, layer, sources, deadline_s=SECONDS)
    result = result_of(kv, kv.commit(store))
    assert (result.status, result.failed_blocks) == (JobStatus.DONE, ())
    assert check_prompt(kv, TOKENS) == 96
    write_prompt(kv, TOKENS)  # all there: nothing to do
    write_prompt(kv, [*TOKENS[:96], *range(32)], first_block=6)
    assert check_prompt(kv, [*TOKENS[:96], *range(32)]) == 128


def test_extras_and_namespaces_keep_blocks_apart(client: StoreClient, kv: BlockStore) -> None:
    write_prompt(kv, TOKENS)
    assert kv.lookup(TOKENS, extra=[(20, "image")]).num_tokens == 16
    with client.kv(replace(NAMESPACE, salt="other")) as other:
        assert other.lookup(TOKENS).num_tokens == 0
    assert not set(kv.keys(TOKENS)) & set(other.keys(TOKENS))


# -- layer streams --------------------------------------------------------------------


def test_r07_a_reader_gets_a_layer_only_once_it_is_complete(
    client: StoreClient, kv: BlockStore
) -> None:
    """The writer holds layer 2 back until the reader has everything before it, and the reader
    stamps when it got what."""
    content = layers_of(kv, kv.keys(TOKENS))
    stored_at: list[float] = []
    read_at: list[float] = []
    first_two_read = threading.Event()
    problems: list[str] = []

    def read() -> None:
        with client.kv(NAMESPACE) as other, other.reader(TOKENS) as reader:
            if reader.num_tokens != 96:
                problems.append(f"{reader.num_tokens} tokens")
            for layer in range(4):
                if reader.layer(layer) != content[layer]:
                    problems.append(f"layer {layer}")
                read_at.append(time.monotonic())
                if layer == 1:
                    first_two_read.set()

    with kv.writer(TOKENS) as writer:
        writer.layer(0, content[0])
        stored_at.append(time.monotonic())
        thread = threading.Thread(target=read)
        thread.start()
        for layer in (1, 2, 3):
            if layer == 2:
                assert first_two_read.wait(SECONDS)
                thread.join(0.2)  # it asks for layer 2 and gets nothing
                assert thread.is_alive()
                assert len(read_at) == 2
            stored_at.append(time.monotonic())
            writer.layer(layer, content[layer])
        thread.join(SECONDS)
    assert not problems
    assert len(read_at) == 4
    assert all(read > stored for read, stored in zip(read_at, stored_at, strict=True))
    assert kv.lookup(TOKENS).num_tokens == 96


def test_a_reader_is_told_when_the_writer_gives_up(client: StoreClient, kv: BlockStore) -> None:
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    content = layers_of(kv, kv.keys(TOKENS))
    assert result_of(kv, kv.submit_store(store, 0, content[0], deadline_s=SECONDS)).reason == ""
    with client.kv(NAMESPACE) as other, other.reader(TOKENS) as reader:
        assert reader.layer(0) == content[0]
        abort = threading.Timer(0.05, lambda: kv.abort(store))
        abort.start()
        with pytest.raises(ViewExpired):
            reader.layer(1)
        abort.join()


def test_a_reader_does_not_wait_beyond_its_deadline(kv: BlockStore) -> None:
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    wait_until(lambda: store.statuses is not None)
    with kv.reader(TOKENS, timeout_s=0.3) as reader, within(0.5), pytest.raises(StoreTimeout):
        reader.layer(0)
    kv.abort(store)


# -- what can go wrong ------------------------------------------------------------------


def test_r53_what_was_evicted_between_match_and_load_is_named(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore
) -> None:
    write_prompt(kv, TOKENS)
    pinned = kv.lookup(TOKENS, pin_s=60)
    loose = kv.lookup(TOKENS)
    keys = kv.keys(TOKENS)
    gone = wire.Remove([kv_entry_id(keys[index], LAYOUT.whole()[0]) for index in (1, 4)])
    with Scribbler(daemon) as remover:
        assert remover.request(gone).count == 2
    content = layers_of(kv, keys)

    def load(hit: PrefixHit, layers: Sequence[int]) -> tuple[JobStatus, tuple[int, ...], bool]:
        buffers = buffers_for(kv, layers, 6)
        job = kv.submit_load(hit.ticket, layers, buffers, deadline_s=SECONDS)
        result = result_of(kv, job)
        right = all(
            bytes(buffer) == content[layer][block]
            for layer, row in zip(layers, buffers, strict=True)
            for block, buffer in enumerate(row)
            if block not in result.failed_blocks
        )
        return result.status, result.failed_blocks, right

    # pinned: all six, though two can no longer be found
    assert load(pinned, [0, 1, 2, 3]) == (JobStatus.DONE, (), True)
    assert kv.lookup(TOKENS).num_tokens == 16
    kv.release(pinned.ticket)
    wait_until(lambda: client.stats()["pins"] == 0)
    # not pinned any more: the removed ones are named, the others are right
    for hit in (pinned, loose):
        assert load(hit, [2, 3]) == (JobStatus.FAILED, (1, 4), True)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_r10_bytes_that_changed_are_never_handed_out(daemon: StoreProcess, transport: str) -> None:
    """A writer scribbles over its own blocks: a reader names exactly those, and the daemon drops
    them."""
    stride = LAYOUT.layer_stride(LAYOUT.whole()[0], 16)
    with (
        client_of(daemon, transport) as client,
        client.kv(NAMESPACE) as kv,
        Scribbler(daemon) as scribbler,
    ):
        client.clear()
        write_prompt(kv, TOKENS[:48])
        corrupt_before = client.stats()["tiers"]["dram"]["corrupt"]
        keys = kv.keys(TOKENS)
        offsets = _store_blocks(scribbler, kv, keys[3:], parent=keys[2])
        assert check_prompt(kv, TOKENS) == 96
        scribbler.memory[offsets[1] + 2 * stride + 5] ^= 1  # block 4, layer 2
        hit = kv.lookup(TOKENS, pin_s=60)
        buffers = buffers_for(kv, range(4), 6)
        job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
        result = result_of(kv, job)
        assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (4,))
        assert result.reason.startswith("corrupt: ")
        assert client.counters.corrupt == 1
        wait_until(lambda: client.stats()["tiers"]["dram"]["corrupt"] == corrupt_before + 1)
        kv.release(hit.ticket)
        assert check_prompt(kv, TOKENS) == 64
        offset = _store_blocks(scribbler, kv, keys[4:5], parent=keys[3])[0]
        with kv.reader(TOKENS) as reader:
            assert len(reader.blocks) == 6
            scribbler.memory[offset + 3 * stride] ^= 1
            reader.layer(2)
            with pytest.raises(Corrupt):
                reader.layer(3)


def _store_blocks(
    scribbler: Scribbler, kv: BlockStore, keys: Sequence[bytes], parent: bytes
) -> list[int]:
    """Stores whole blocks through the protocol; offset of each in the scribbler's memory."""
    namespace = scribbler.request(
        wire.OpenNamespace(
            NAMESPACE.digest, "w", "t", 16, "", "", "", [("full", 4, 4, 8, "float16", None, None)]
        )
    )
    assert isinstance(namespace, wire.NamespaceReply)
    shard = LAYOUT.whole()[0]
    stride = LAYOUT.layer_stride(shard, 16)
    reserved = scribbler.request(
        wire.ReserveBlocks(namespace.namespace, b"".join(keys), parent, [shard.pack()])
    )
    assert isinstance(reserved, wire.Reserved)
    scribbler.map(reserved.results[0][3])
    slots = [result[1] for result in reserved.results]
    generations = [result[2] for result in reserved.results]
    offsets = [result[4] for result in reserved.results]
    for layer, content in enumerate(layers_of(kv, keys)):
        for offset, block in zip(offsets, content, strict=True):
            start = offset + layer * stride
            scribbler.memory[start : start + len(block)] = block
        sums = [xxhash.xxh3_64_intdigest(block) for block in content]
        assert scribbler.request(wire.Advance(slots, generations, layer, sums)) == wire.Ok()
    reply = scribbler.request(wire.Commit(slots, generations, []))
    assert reply == wire.PutReply([(0, "")] * len(keys))
    return offsets


def test_a_full_pool_stores_what_fits_and_names_the_rest(store_daemon: StartStore) -> None:
    daemon = store_daemon("--dram", "8MiB", "--segment", "4MiB")
    layout = KVLayout((Group("full", 2, 8, 128, "float32"),))
    namespace = Namespace(weights_id="f", layout=layout, tokenizer_digest="t", block_tokens=64)
    with client_of(daemon) as client, client.kv(namespace) as kv:
        block = 2 * kv.layer_bytes(0)
        assert block == 1 << 20
        store = kv.begin_store(range(64 * 20), deadline_s=SECONDS)
        for layer in range(2):
            sources = [bytes(kv.layer_bytes(layer))] * 20
            kv.submit_store(store, layer, sources, deadline_s=SECONDS)
        result = result_of(kv, kv.commit(store))
        assert result.status is JobStatus.DONE
        assert store.statuses is not None
        full = [i for i, status in enumerate(store.statuses) if status is ReserveStatus.FULL]
        assert 0 < len(full) < 20
        assert result.failed_blocks == tuple(full)
        stored = full[0]
        assert kv.lookup(range(64 * 20)).num_tokens == 64 * stored


def test_cancelled_jobs_free_what_they_held(client: StoreClient, kv: BlockStore) -> None:
    content = layers_of(kv, kv.keys(TOKENS))
    write_prompt(kv, TOKENS)
    hit = kv.lookup(TOKENS, pin_s=60)
    fresh = range(3000, 3100)
    for _ in range(20):
        store = kv.begin_store(fresh, deadline_s=SECONDS)
        layer = kv.submit_store(store, 0, content[0], deadline_s=SECONDS)
        load = kv.submit_load(hit.ticket, [0], buffers_for(kv, [0], 6), deadline_s=SECONDS)
        lookup = kv.submit_lookup(TOKENS, deadline_s=SECONDS)
        for job in (store.job, layer, load, lookup, load):
            kv.cancel(job)
        results = {}
        wait_until(
            lambda found=results: found.update({r.job: r for r in kv.poll()}) or len(found) == 4
        )
        for result in results.values():
            assert result.status in (JobStatus.CANCELLED, JobStatus.DONE, JobStatus.FAILED)
            if result.hit is not None:
                kv.release(result.hit.ticket)
    kv.release(hit.ticket)
    wait_until(lambda: client.stats()["in_flight"] == client.stats()["pins"] == 0)
    assert kv.lookup(fresh).num_tokens == 0


def test_a_store_ends_at_its_deadline_or_with_a_failed_layer(kv: BlockStore) -> None:
    content = layers_of(kv, kv.keys(TOKENS))
    store = kv.begin_store(TOKENS, deadline_s=0.1)
    result = result_of(kv, store.job)
    assert result.status is JobStatus.TIMED_OUT
    assert result.failed_blocks == tuple(range(6))
    late = kv.submit_store(store, 0, content[0], deadline_s=SECONDS)
    assert result_of(kv, late).status is JobStatus.FAILED
    store = kv.begin_store(TOKENS, deadline_s=SECONDS)
    broken = kv.submit_store(store, 0, [None] * 6, deadline_s=SECONDS)
    results = {}
    wait_until(lambda: results.update({r.job: r for r in kv.poll()}) or len(results) == 2)
    assert results[broken].status is results[store.job].status is JobStatus.FAILED
    assert "no source" in results[broken].reason


def test_a_very_long_prompt_is_found_in_part(kv: BlockStore) -> None:
    """One reply stays within a frame: a prompt of a million tokens is looked up as far as fits."""
    tokens = range(16 * 40_000)
    write_prompt(kv, tokens[:64])
    hit = kv.lookup(tokens, timeout_s=30)
    assert hit.num_tokens == 64
    with pytest.raises(InvalidRequest, match=r"40000 blocks of 1 shards.*16384"):
        kv.begin_store(tokens, deadline_s=1)


def test_too_many_open_jobs_are_refused(kv: BlockStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "MAX_OPEN_JOBS", 3)
    stores = [kv.begin_store(range(n * 1000, n * 1000 + 32), deadline_s=SECONDS) for n in range(3)]
    with pytest.raises(Busy, match=r"3 jobs are open"):
        kv.submit_lookup(TOKENS, deadline_s=1)
    for store in stores:
        kv.abort(store)
    ended: list[JobResult] = []
    wait_until(lambda: ended.extend(kv.poll()) or len(ended) == 3)
    kv.cancel(stores[0].job)  # finished: no error
    kv.cancel(JobId(0))  # never existed: neither
    assert kv.lookup(TOKENS).num_tokens == 0


def test_wrong_arguments_name_what_is_wrong(kv: BlockStore) -> None:
    write_prompt(kv, TOKENS)
    hit = kv.lookup(TOKENS)
    size = kv.layer_bytes(0)
    store = kv.begin_store(range(9000, 9064), deadline_s=SECONDS)
    good = [bytes(size)] * 4
    with pytest.raises(InvalidRequest, match=r"layer 1 .*next layer is 0"):
        kv.submit_store(store, 1, good, deadline_s=1)
    with pytest.raises(InvalidRequest, match=r"3 sources .* 4 blocks"):
        kv.submit_store(store, 0, good[1:], deadline_s=1)
    with pytest.raises(InvalidRequest, match=rf"source of {size - 1} bytes.*{size}"):
        kv.submit_store(store, 0, [*good[1:], bytes(size - 1)], deadline_s=1)
    with pytest.raises(InvalidRequest, match="0 of 4 layers"):
        kv.commit(store)
    kv.abort(store)
    with pytest.raises(InvalidRequest, match=r"layer 4; .* 4 layers"):
        kv.submit_load(hit.ticket, [4], [[bytearray(size)] * 6], deadline_s=1)
    with pytest.raises(InvalidRequest, match="block 6; the hit has 6"):
        kv.submit_load(hit.ticket, [0], [[bytearray(size)]], blocks=[6], deadline_s=1)
    with pytest.raises(InvalidRequest, match="5 destinations for 6 blocks"):
        kv.submit_load(hit.ticket, [0], [[bytearray(size)] * 5], deadline_s=1)
    with pytest.raises(InvalidRequest, match="read-only"):
        kv.submit_load(hit.ticket, [0], [[bytes(size)] * 6], deadline_s=1)
    with pytest.raises(InvalidRequest, match=r"first_block is 6; .* 6 full blocks"):
        kv.begin_store(TOKENS, first_block=6, deadline_s=1)
    with pytest.raises(InvalidRequest, match="timeout of 0"):
        kv.submit_lookup(TOKENS, deadline_s=0)


def test_a_block_store_that_nobody_holds_gives_everything_back(client: StoreClient) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with client.kv(NAMESPACE) as kept:
        before = open_descriptors()
        for _ in range(20):
            client.kv(NAMESPACE)
        wait_until(lambda: kept.lookup(TOKENS).num_tokens == 0 and open_descriptors() <= before)
