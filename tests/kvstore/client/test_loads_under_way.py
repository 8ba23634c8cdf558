"""Loads of blocks whose layers are still on their way: waited for, bounded, never wrong."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence

import pytest

from moontide.kvstore import (
    BlockKey,
    BlockStore,
    BlockWriter,
    JobId,
    JobResult,
    JobStatus,
    PrefixHit,
    Shard,
    StoreClient,
    kv_entry_id,
    wire,
)
from moontide.kvstore.client.blocks import layer_waits

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from .helpers import (
    LAYOUT,
    NAMESPACE,
    SECONDS,
    TOKENS,
    Scribbler,
    block_bytes,
    buffers_for,
    client_of,
    hit_under_way,
    layers_of,
    other_store,
    result_of,
    write_prompt,
)

GUARD = 0xA5


class Writers:
    """Blocks 0–1, 2–3 and 4–5 of TOKENS under way, each pair by a writer of its own."""

    def __init__(self, kv: BlockStore, stack: contextlib.ExitStack) -> None:
        self._kv = kv
        self.each = []
        for pair in range(3):
            writer = BlockWriter(
                kv.jobs, kv.keys(TOKENS[: 32 * (pair + 1)]), 2 * pair, kv.limit(SECONDS)
            )
            stack.callback(self._end, writer)
            self.each.append(writer)

    def layer(self, pair: int, layer: int) -> None:
        keys = self._kv.keys(TOKENS)[2 * pair : 2 * pair + 2]
        self.each[pair].layer(layer, contents(self._kv, keys, layer))

    def _end(self, writer: BlockWriter) -> None:
        with contextlib.suppress(Exception):  # those that have ended already
            writer.abort()


def contents(kv: BlockStore, keys: Sequence[BlockKey], layer: int) -> list[bytes]:
    return [block_bytes(key, layer, kv.layer_bytes(layer)) for key in keys]


def right_blocks(kv: BlockStore, buffers: Sequence[Sequence[bytearray]]) -> set[int]:
    """Blocks of which every layer is as written."""
    content = layers_of(kv, kv.keys(TOKENS))
    return {
        block
        for block in range(6)
        if all(row[block] == content[layer][block] for layer, row in enumerate(buffers))
    }


# -- waiting ----------------------------------------------------------------------------


def test_a_load_waits_for_layers_that_are_still_written(
    daemon: StoreProcess, kv: BlockStore
) -> None:
    """One job for all layers ends with the last of them; one job a layer ends with its own."""
    with other_store(daemon) as source:
        keys = source.keys(TOKENS)
        writer = source.writer(TOKENS, timeout_s=SECONDS)
        writer.layer(0, contents(source, keys, 0))
        hit = hit_under_way(kv, TOKENS)
        assert hit.transports == ("shm",) * 6
        whole = buffers_for(kv, range(4), 6)
        last = kv.submit_load(hit.ticket, range(4), whole, deadline_s=SECONDS)
        for layer in range(4):
            single = buffers_for(kv, [layer], 6)
            job = kv.submit_load(hit.ticket, [layer], single, deadline_s=SECONDS)
            if layer:
                assert not kv.poll()
                writer.layer(layer, contents(source, keys, layer))
            if layer < 3:  # the whole job ends with the last layer, in either order
                assert result_of(kv, job).status is JobStatus.DONE
                assert single == [contents(source, keys, layer)]
        assert result_of(kv, last).status is JobStatus.DONE
        assert right_blocks(kv, whole) == set(range(6))
        writer.commit()
    again = buffers_for(kv, range(4), 6)
    assert kv.load(hit.ticket, range(4), again).status is JobStatus.DONE  # checksums are known now
    assert again == whole
    kv.release(hit.ticket)


def test_layers_asked_for_in_any_order_and_in_several_questions(
    daemon: StoreProcess, kv: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_waits, "MAX_AWAITED", 2)
    monkeypatch.setattr(layer_waits, "AWAIT_SECONDS", 0.05)  # and asked again and again
    with other_store(daemon) as source, source.writer(TOKENS) as writer:
        hit = hit_under_way(kv, TOKENS)
        layers, blocks = [3, 0, 2], [5, 1, 3]
        buffers = buffers_for(kv, layers, len(blocks))
        job = kv.submit_load(hit.ticket, layers, buffers, blocks=blocks, deadline_s=SECONDS)
        content = layers_of(source, source.keys(TOKENS))
        for layer in range(4):
            time.sleep(0.06)  # longer than one question
            writer.layer(layer, content[layer])
        assert result_of(kv, job).status is JobStatus.DONE
        assert buffers == [[content[layer][block] for block in blocks] for layer in layers]
        kv.release(hit.ticket)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_what_was_all_there_is_loaded_without_asking(daemon: StoreProcess, transport: str) -> None:
    with client_of(daemon, transport) as client, client.kv(NAMESPACE) as kv:
        client.clear()
        write_prompt(kv, TOKENS)
        hit = kv.lookup(TOKENS, pin_s=SECONDS)
        assert hit.transports == ("shm",) * 6
        kv.load(hit.ticket, range(4), buffers_for(kv, range(4), 6))  # maps the segment
        before = client.stats()["requests"]
        for _ in range(3):
            loaded = kv.load(hit.ticket, range(4), buffers_for(kv, range(4), 6))
            assert loaded.status is JobStatus.DONE
        after = client.stats()["requests"]
        sent = {name: count - before.get(name, 0) for name, count in after.items()}
        assert {name: count for name, count in sent.items() if count} == {"GetStats": 1} | (
            {"Read": 3} if transport == "tcp" else {}
        )
        kv.release(hit.ticket)


# -- blocks that stop coming --------------------------------------------------------------


def test_r09_r08_exactly_the_blocks_that_stop_coming_have_failed(
    daemon: StoreProcess, kv: BlockStore
) -> None:
    """One of three writers gives up before layer k, for every k."""
    for k in range(4):
        for loser in range(3):
            with other_store(daemon) as source, contextlib.ExitStack() as stack:
                writers = Writers(source, stack)
                hit = hit_under_way(kv, TOKENS)
                buffers = buffers_for(kv, range(4), 6)
                job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
                for layer in range(4):
                    for pair in range(3):
                        if pair == loser and layer == k:
                            writers.each[pair].abort()
                        if pair != loser or layer < k:
                            writers.layer(pair, layer)
                result = result_of(kv, job)
                lost = (2 * loser, 2 * loser + 1)
                assert (result.status, result.failed_blocks) == (JobStatus.FAILED, lost)
                assert result.reason.startswith("view_expired: ")
                assert right_blocks(kv, buffers) >= set(range(6)) - set(lost)
                kv.release(hit.ticket)


def test_r05_a_block_fails_with_any_of_its_parts(daemon: StoreProcess, kv: BlockStore) -> None:
    """Two ranks write half the heads each; one gives up."""
    halves = [Shard(0, (0, 4), (0, 2)), Shard(0, (0, 4), (2, 4))]
    half_bytes = kv.layer_bytes(0) // 2
    with (
        other_store(daemon, halves[0]) as first,
        other_store(daemon, halves[1]) as second,
        first.writer(TOKENS) as writer,
        contextlib.ExitStack() as stack,
    ):
        losing = BlockWriter(second.jobs, second.keys(TOKENS), 2, second.limit(SECONDS))
        stack.callback(losing.abort)
        staying = BlockWriter(second.jobs, second.keys(TOKENS[:32]), 0, second.limit(SECONDS))
        hit = hit_under_way(kv, TOKENS)
        buffers = buffers_for(kv, range(4), 6)
        job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
        content = layers_of(kv, kv.keys(TOKENS))
        for layer in range(4):
            writer.layer(layer, [block[:half_bytes] for block in content[layer]])
            staying.layer(layer, [block[half_bytes:] for block in content[layer][:2]])
            if layer == 2:
                losing.abort()
        staying.commit()
        result = result_of(kv, job)
        assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (2, 3, 4, 5))
        assert right_blocks(kv, buffers) >= {0, 1}
        kv.release(hit.ticket)


def test_r53_blocks_that_leave_while_others_come_have_failed(
    daemon: StoreProcess, client: StoreClient, kv: BlockStore
) -> None:
    """The ticket expires while the load waits; two blocks are removed, their place is taken."""
    with other_store(daemon) as source, contextlib.ExitStack() as stack:
        writers = Writers(source, stack)
        for layer in range(4):
            writers.layer(0, layer)
        hit = hit_under_way(kv, TOKENS, pin_s=0.05)
        buffers = buffers_for(kv, range(4), 6)
        job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=SECONDS)
        writers.each[0].commit()
        wait_until(lambda: client.stats()["pins"] == 0)
        keys = source.keys(TOKENS)
        gone = wire.Remove([kv_entry_id(key, LAYOUT.whole()[0]) for key in keys[:2]])
        with Scribbler(daemon) as remover:
            assert remover.request(gone).count == 2
        write_prompt(source, range(7000, 7032))
        for layer in range(4):
            writers.layer(1, layer)
            writers.layer(2, layer)
        result = result_of(kv, job)
        assert (result.status, result.failed_blocks) == (JobStatus.FAILED, (0, 1))
        assert right_blocks(kv, buffers) >= {2, 3, 4, 5}


# -- ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["cancelled", "timed_out"])
def test_r10_nothing_is_written_after_the_result(
    daemon: StoreProcess, kv: BlockStore, end: str
) -> None:
    """The writer goes on when the load has ended; the buffers then belong to someone else."""
    with other_store(daemon) as source, source.writer(TOKENS) as writer:
        content = layers_of(source, source.keys(TOKENS))
        writer.layer(0, content[0])
        hit = hit_under_way(kv, TOKENS)
        buffers = buffers_for(kv, range(4), 6)
        deadline_s = SECONDS if end == "cancelled" else 0.1
        started = time.monotonic()
        with within(0.3 if end == "timed_out" else SECONDS):
            job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=deadline_s)
            if end == "cancelled":
                wait_until(lambda: buffers[0] == content[0])
                kv.cancel(job)
            result = result_of(kv, job)
        if end == "timed_out":
            assert time.monotonic() - started >= 0.1
        assert result.status.value == end
        assert result.failed_blocks == tuple(range(6))
        for row in buffers:
            for buffer in row:
                buffer[:] = bytes([GUARD]) * len(buffer)
        for layer in (1, 2, 3):
            writer.layer(layer, content[layer])
        fresh = buffers_for(kv, range(4), 6)
        assert (
            kv.load(hit.ticket, range(4), fresh).status is JobStatus.DONE
        )  # nothing is in its way
        assert {byte for row in buffers for buffer in row for byte in set(buffer)} == {GUARD}
        kv.release(hit.ticket)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_r21_a_load_ends_at_its_deadline_when_the_daemon_stops(
    store_daemon: StartStore, transport: str
) -> None:
    daemon = store_daemon()
    with (
        client_of(daemon, transport) as client,
        client.kv(NAMESPACE) as kv,
        other_store(daemon) as source,
        contextlib.ExitStack() as stack,
    ):
        writers = Writers(source, stack)
        for pair in range(3):
            writers.layer(pair, 0)
        hit = hit_under_way(kv, TOKENS)
        buffers = buffers_for(kv, range(4), 6)
        content = layers_of(source, source.keys(TOKENS))
        started = time.monotonic()
        with within(0.55 + 0.15):
            job = kv.submit_load(hit.ticket, range(4), buffers, deadline_s=0.5)
            wait_until(lambda: buffers[0] == content[0])
            with daemon.stopped():
                result = result_of(kv, job)
        assert result.status is JobStatus.TIMED_OUT
        assert time.monotonic() - started >= 0.5
        for layer in (1, 2, 3):
            for pair in range(3):
                writers.layer(pair, layer)
        assert kv.load(hit.ticket, range(4), buffers).status is JobStatus.DONE
        assert right_blocks(kv, buffers) == set(range(6))


def test_r25_a_load_is_told_when_the_daemon_dies(store_daemon: StartStore) -> None:
    daemon = store_daemon()
    with client_of(daemon) as client, client.kv(NAMESPACE) as kv:
        with other_store(daemon) as source:
            BlockWriter(source.jobs, source.keys(TOKENS), 0, source.limit(SECONDS))
            wait_until(lambda: client.stats()["in_flight"] == 6)
            hit = hit_under_way(kv, TOKENS)
            job = kv.submit_load(hit.ticket, [0], buffers_for(kv, [0], 6), deadline_s=SECONDS)
            daemon.kill()
            result = result_of(kv, job)
            assert result.status is JobStatus.FAILED
            assert result.reason.startswith("unavailable: ")
            assert result.failed_blocks == tuple(range(6))
        daemon.start()
        late = kv.load(hit.ticket, [0], buffers_for(kv, [0], 6), timeout_s=SECONDS)
        assert late.reason.startswith("view_expired: ")


def test_a_slow_wait_does_not_hold_up_others(daemon: StoreProcess, kv: BlockStore) -> None:
    """Requests are pipelined: lookups and loads go on while a load waits on the same connection."""
    write_prompt(kv, range(1000, 1064))
    with other_store(daemon) as source, source.writer(TOKENS) as writer:
        waiting: PrefixHit = hit_under_way(kv, TOKENS)
        job = kv.submit_load(waiting.ticket, [0], buffers_for(kv, [0], 6), deadline_s=SECONDS)
        for _ in range(10):
            hit = kv.lookup(range(1000, 1064))
            assert hit.num_tokens == 64
            assert kv.load(hit.ticket, [0], buffers_for(kv, [0], 4)).status is JobStatus.DONE
        assert not kv.poll()
        done = threading.Event()
        thread = threading.Thread(target=lambda: result_of(kv, job) and done.set())
        thread.start()
        for layer, content in enumerate(layers_of(source, source.keys(TOKENS))):
            writer.layer(layer, content)
        assert done.wait(SECONDS)
        thread.join()
        kv.release(waiting.ticket)


# -- everything at once --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_r09_random_loads_of_blocks_that_come_or_stop(
    daemon: StoreProcess, kv: BlockStore, seed: int
) -> None:
    """Writers that give up anywhere, loads of any layers and blocks that begin anywhere, some
    cancelled or short of time: what is not named as failed is right."""
    rng = random.Random(seed)
    with other_store(daemon) as source:
        content = layers_of(source, source.keys(TOKENS))
        for _ in range(8):
            with contextlib.ExitStack() as stack:
                writers = Writers(source, stack)
                hit = hit_under_way(kv, TOKENS)
                stop_at = [rng.choice([None, *range(4)]) for _ in range(3)]
                loads = Loads(kv, hit, rng)
                for layer in range(4):
                    for pair in rng.sample(range(3), 3):
                        loads.maybe_begin()
                        if stop_at[pair] == layer:
                            writers.each[pair].abort()
                        elif stop_at[pair] is None or layer < stop_at[pair]:
                            writers.layer(pair, layer)
                loads.maybe_begin()
                ended = {
                    2 * pair + half
                    for pair, layer in enumerate(stop_at)
                    for half in (0, 1)
                    if layer is not None
                }
                loads.check(content, ended)
                kv.release(hit.ticket)


class Loads:
    """Loads of one hit, begun at random."""

    def __init__(self, kv: BlockStore, hit: PrefixHit, rng: random.Random) -> None:
        self._kv = kv
        self._hit = hit
        self._rng = rng
        self._begun: dict[JobId, tuple[list[int], list[int], list[list[bytearray]]]] = {}
        self._cut_short: set[JobId] = set()

    def maybe_begin(self) -> None:
        rng = self._rng
        if rng.random() < 0.5:
            return
        layers = rng.sample(range(4), rng.randint(1, 4))
        blocks = rng.sample(range(6), rng.randint(1, 6))
        buffers = buffers_for(self._kv, layers, len(blocks))
        deadline_s = rng.choice([0.001, SECONDS, SECONDS, SECONDS])
        job = self._kv.submit_load(
            self._hit.ticket, layers, buffers, blocks=blocks, deadline_s=deadline_s
        )
        self._begun[job] = (layers, blocks, buffers)
        if deadline_s < SECONDS or rng.random() < 0.2:
            self._kv.cancel(job)
            self._cut_short.add(job)

    def check(self, content: Sequence[Sequence[bytes]], ended: set[int]) -> None:
        """`ended`: blocks whose writer gave up."""
        results: list[JobResult] = []
        wait_until(lambda: results.extend(self._kv.poll()) or len(results) == len(self._begun))
        for result in results:
            layers, blocks, buffers = self._begun[result.job]
            if result.job not in self._cut_short:
                assert result.status in (JobStatus.DONE, JobStatus.FAILED)
                assert set(result.failed_blocks) <= ended
            for layer, row in zip(layers, buffers, strict=True):
                for block, buffer in zip(blocks, row, strict=True):
                    if block not in result.failed_blocks:
                        assert buffer == content[layer][block]
