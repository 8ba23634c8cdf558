"""Blocks that lie on this node's disk, which can be slow: what is decided, and that no answer
depends on it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moontide.engine_adapters.builtin.engine.load_advisor import LoadAdvisor
from moontide.engine_adapters.builtin.engine.sequence import Source
from moontide.kvstore import Namespace, StoreClient, Tier, connect

from ...kvstore.daemon.warm import admin_of, wait_flushed
from ...slow_disk import SlowDiskStore
from ...waiting import wait_until
from .conftest import BLOCK, WAIT_SECONDS, Bench, MakeBench
from .test_engine import prompt
from .test_load_or_recompute import BLOCK_BYTES, FREE_SECONDS, TOKENS, prefill_at
from .test_store_paths import holds_nothing

NUM_BLOCKS = TOKENS // BLOCK
DISK_BYTES_PER_S = 2e6 / 8
DISK = Source(Tier.NVME, "file")
MakeHere = Callable[[Callable[[LoadAdvisor], None]], Bench]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowDiskStore]:
    flags = ("--dram", "32MiB", "--segment", "4MiB", "--max-entries", "4096", "--nvme", "64MiB")
    with tempfile.TemporaryDirectory(prefix="mt-") as folder:
        store = SlowDiskStore(tmp_path_factory.mktemp("slow"), Path(folder) / "s.sock", flags)
        store.bytes_per_s = 2 * DISK_BYTES_PER_S  # a layer is half a page
        store.start()
        yield store
        store.kill()


@pytest.fixture
def client(store: SlowDiskStore) -> Iterator[StoreClient]:
    with connect(f"unix:{store.socket}") as client:
        client.clear()
        wait_until(lambda: admin_of(store).stats()["tiers"]["nvme"]["flushed"] == 0)
        yield client


@pytest.fixture
def make_here(make_bench: MakeBench, namespace: Namespace, client: StoreClient) -> MakeHere:
    """An engine that goes by what it measures."""

    def make(teach: Callable[[LoadAdvisor], None]) -> Bench:
        kv = client.kv(namespace)
        return make_bench(kv, load="auto", teach=teach, lookup_timeout_s=WAIT_SECONDS)

    return make


def on_disk_only(store: SlowDiskStore, bench: Bench, count: int) -> None:
    wait_flushed(store, count)
    admin_of(store).post("/v1/evict", {"tier": "dram"})
    bench.clear()


def test_r51_a_load_from_a_slow_disk_is_dropped_once_and_then_not_begun(
    store: SlowDiskStore, client: StoreClient, make_here: MakeHere
) -> None:
    """50 blocks take 1.6 s; computing them takes 0.02 s."""
    here = make_here(lambda advisor: prefill_at(advisor, 20_000.0))
    prompts = [prompt(TOKENS, seed) for seed in range(3)]
    expected = [here.stored(token_ids).token_ids for token_ids in prompts]
    on_disk_only(store, here, 3 * NUM_BLOCKS)
    answers = [here.run(token_ids) for token_ids in prompts]
    here.settle()
    assert [answer.token_ids for answer in answers] == expected
    assert [answer.reuse.nvme_tokens for answer in answers] == [0, 0, 0]
    assert [answer.reuse.recomputed for answer in answers] == [True, False, False]
    counts = here.engine.stats.store
    assert (counts.loads_dropped, counts.loads_skipped, counts.breaker_opened) == (1, 2, 0)
    wait_until(lambda: holds_nothing(client), FREE_SECONDS, client.stats)


def test_r51_of_what_lies_on_a_slow_disk_the_first_blocks_are_loaded_and_the_rest_computed(
    store: SlowDiskStore, client: StoreClient, make_here: MakeHere
) -> None:
    """Where either takes about as long; what is not loaded is not read either, but for what the
    disk had been asked for by then."""

    def teach(advisor: LoadAdvisor) -> None:
        prefill_at(advisor, 150.0)
        advisor.rates.note(DISK, 10_000_000, 10_000_000 / DISK_BYTES_PER_S, time.monotonic())

    here = make_here(teach)
    token_ids = prompt(TOKENS, 8)
    expected = here.stored(token_ids)
    on_disk_only(store, here, NUM_BLOCKS)
    before = client.stats()["transports"]["file"]["bytes_in"]
    answer = here.run(token_ids)
    here.settle()
    assert answer.token_ids == expected.token_ids
    num_blocks = answer.reuse.nvme_tokens // BLOCK
    assert 10 < num_blocks < 40
    assert answer.reuse.bytes_by_transport == {"file": num_blocks * BLOCK_BYTES}
    assert not answer.reuse.recomputed
    counts = here.engine.stats.store
    assert (counts.loads_shortened, counts.loads_dropped) == (1, 0)
    wait_until(lambda: admin_of(store).stats()["fills"] == 0)
    read = client.stats()["transports"]["file"]["bytes_in"] - before
    assert num_blocks * BLOCK_BYTES <= read < NUM_BLOCKS * BLOCK_BYTES
