"""Blocks that lie on another node, behind a link that can be slow: what is decided, and that no
answer depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import pytest

from moontide.engine_adapters.builtin.bench.throttle import ThrottledRelay
from moontide.engine_adapters.builtin.engine.load_advisor import LoadAdvisor, MeasuredChoice
from moontide.engine_adapters.builtin.engine.load_costs import PrefillCost
from moontide.engine_adapters.builtin.engine.load_decision import Company
from moontide.engine_adapters.builtin.engine.sequence import Found, Sequence, Source
from moontide.engine_adapters.builtin.model import ModelConfig, Sampling
from moontide.kvstore import Namespace, StoreClient, Tier, connect
from moontide.kvstore.membership import FileMembership, StoreRecord

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .conftest import BLOCK, WAIT_SECONDS, Bench, MakeBench, NewKv
from .taps import Holding
from .test_engine import prompt
from .test_store_paths import holds_nothing
from .two_nodes import TwoNodes

MBIT = 1e6 / 8  # bytes a second
TOKENS = 50 * BLOCK + 3
BLOCK_BYTES = 4 * 2 * 2 * BLOCK * 16 * 4  # all layers
REMOTE = Source(Tier.DRAM, "tcp", "home")
FREE_SECONDS = 5.0


@dataclass(frozen=True)
class SlowCluster:
    """`home` has everything; `here` reads from it through the relay."""

    home: StoreProcess
    here: StoreProcess
    relay: ThrottledRelay


@pytest.fixture(scope="module")
def cluster(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SlowCluster]:
    """Each has a membership of its own: in that of `here`, `home` is where the relay is."""
    folder = tmp_path_factory.mktemp("slow")
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("cluster-token-of-the-tests")
    memberships = [folder / "home", folder / "here"]
    home, here = [
        module_store_daemon(
            *("--node-id", path.name, "--token-file", str(token)),
            *("--cluster", f"file:{path}", "--dram", "32MiB", "--segment", "4MiB"),
        )
        for path in memberships
    ]
    [member] = FileMembership(memberships[0]).members()
    record = member.record
    assert isinstance(record, StoreRecord)
    with ThrottledRelay(record.transfer_address, MBIT) as relay:
        behind = msgspec.structs.replace(record, transfer_address=relay.address)
        FileMembership(memberships[1]).register(behind, 600.0)
        with connect(f"unix:{here.socket}") as client:
            wait_until(lambda: client.stats()["peers"]["up"], 10.0, client.stats)
        yield SlowCluster(home, here, relay)


@pytest.fixture
def clients(cluster: SlowCluster) -> Iterator[list[StoreClient]]:
    with (
        connect(f"unix:{cluster.home.socket}") as home,
        connect(f"unix:{cluster.here.socket}") as here,
    ):
        for client in (home, here):
            client.clear()
        yield [home, here]


@pytest.fixture
def home(make_bench: MakeBench, namespace: Namespace, clients: list[StoreClient]) -> Bench:
    """An engine that fills its store."""
    return make_bench(clients[0].kv(namespace))


@pytest.fixture
def make_here(
    make_bench: MakeBench, namespace: Namespace, clients: list[StoreClient]
) -> Callable[..., Bench]:
    """The engine at the other node, which goes by what it measures."""

    def make(teach: Callable[[LoadAdvisor], None] = lambda advisor: None) -> Bench:
        kv = clients[1].kv(namespace)
        return make_bench(kv, load="auto", teach=teach, lookup_timeout_s=WAIT_SECONDS)

    return make


def await_known(clients: list[StoreClient]) -> None:
    """`here` has heard of all that `home` has."""

    def is_known() -> bool:
        home, here = (client.stats() for client in clients)
        known = home["tiers"]["dram"]["entries"] + home["hbm_blocks"]
        return bool(here["peers"]["indexed_blocks"] == known)

    wait_until(is_known, 10.0, clients[1].stats)


class SteadyPrefill(PrefillCost):
    """Computing takes so long, whatever this machine does meanwhile."""

    def __init__(self, config: ModelConfig, tokens_per_s: float) -> None:
        super().__init__(config, "cpu")
        super().note([range(1000)], 1000 / tokens_per_s)

    def note(self, chunks: list[range], seconds: float) -> None:
        pass


def prefill_at(advisor: LoadAdvisor, tokens_per_s: float) -> None:
    advisor.prefill = SteadyPrefill(advisor.config, tokens_per_s)


def test_r51_a_load_over_1_mbit_is_dropped_once_and_then_not_begun(
    cluster: SlowCluster,
    home: Bench,
    make_here: MakeBench,
    make_bench: MakeBench,
    clients: list[StoreClient],
    namespace: Namespace,
) -> None:
    """50 blocks take 7 s; computing them takes 0.02 s."""
    here = make_here(lambda advisor: prefill_at(advisor, 20_000.0))
    prompts = [prompt(TOKENS, seed) for seed in range(3)]
    expected = [home.stored(token_ids).token_ids for token_ids in prompts]
    await_known(clients)
    before = clients[1].stats()["peers"]
    cluster.relay.bytes_per_s = MBIT
    answers = [here.run(token_ids) for token_ids in prompts]
    here.settle()
    assert [answer.token_ids for answer in answers] == expected
    assert [answer.reuse.dram_tokens for answer in answers] == [0, 0, 0]
    assert [answer.reuse.recomputed for answer in answers] == [True, False, False]
    counts = here.engine.stats.store
    assert (counts.loads_dropped, counts.loads_skipped) == (1, 2)
    assert here.engine.stats.speeds.load_bytes_per_s[str(REMOTE)] < 20 * MBIT
    assert counts.breaker_opened == 0
    for client in clients:  # what came too late is gone, and nobody holds anything
        wait_until(lambda each=client: holds_nothing(each), FREE_SECONDS, client.stats)
    after = clients[1].stats()["peers"]
    assert after["dropped_entries"] - before["dropped_entries"] == 3 * 50
    assert after["filled_entries"] == before["filled_entries"]
    again = make_bench(clients[1].kv(namespace)).run(prompts[0])  # what was computed was stored
    assert (again.token_ids, again.reuse.dram_tokens) == (expected[0], 50 * BLOCK)
    assert again.reuse.bytes_by_transport == {"shm": 50 * BLOCK_BYTES}


@pytest.mark.parametrize("mbit", [10, 100, 10_000])
def test_r51_where_computing_is_slower_still_it_is_loaded(
    cluster: SlowCluster,
    home: Bench,
    make_here: MakeBench,
    clients: list[StoreClient],
    mbit: int,
) -> None:
    """50 blocks take 0.7 s at 10 Mbit/s; computing them would take 40 s."""
    here = make_here(lambda advisor: prefill_at(advisor, 10.0))
    token_ids = prompt(TOKENS, 100 + mbit)
    expected = home.stored(token_ids)
    await_known(clients)
    cluster.relay.bytes_per_s = mbit * MBIT
    answer = here.run(token_ids)
    here.settle()
    assert answer.token_ids == expected.token_ids
    assert answer.reuse.dram_tokens == 50 * BLOCK
    assert answer.reuse.bytes_by_transport == {"tcp": 50 * BLOCK_BYTES}
    store = here.engine.stats.store
    assert (store.loads, store.loads_dropped, store.loads_skipped) == (1, 0, 0)
    assert store.load_measured_seconds > 0.5 * 50 * BLOCK_BYTES / (mbit * MBIT)
    assert store.load_error_seconds == pytest.approx(
        abs(store.load_estimated_seconds - store.load_measured_seconds)
    )


def test_the_part_that_is_near_is_loaded_and_the_rest_computed(
    cluster: SlowCluster, home: Bench, make_here: MakeBench, clients: list[StoreClient]
) -> None:
    def teach(advisor: LoadAdvisor) -> None:
        prefill_at(advisor, 2_000.0)
        advisor.rates.note(REMOTE, 10_000_000, 10_000_000 / MBIT, time.monotonic())

    here = make_here(teach)
    token_ids = prompt(TOKENS, 7)
    here.stored(token_ids[: 20 * BLOCK + 1], 1)
    here.clear()
    expected = home.stored(token_ids)
    await_known(clients)
    cluster.relay.bytes_per_s = MBIT
    answer = here.run(token_ids)
    here.settle()
    assert answer.token_ids == expected.token_ids
    assert answer.reuse.dram_tokens == 20 * BLOCK
    assert answer.reuse.bytes_by_transport == {"shm": 20 * BLOCK_BYTES}
    assert not answer.reuse.recomputed
    assert here.engine.stats.store.loads_shortened == 1


def test_r51_of_a_slow_peers_blocks_the_first_are_loaded_while_the_rest_is_computed(
    cluster: SlowCluster, home: Bench, make_here: MakeBench, clients: list[StoreClient]
) -> None:
    """Where either takes about as long; what is not loaded comes no further. A load of everything
    goes before, from which the store knows the peer's pace."""
    bytes_per_s = 2 * MBIT

    def teach(advisor: LoadAdvisor) -> None:
        prefill_at(advisor, 150.0)
        advisor.rates.note(REMOTE, 10_000_000, 10_000_000 / bytes_per_s, time.monotonic())

    patient, here = make_here(lambda advisor: prefill_at(advisor, 10.0)), make_here(teach)
    home.stored(prompt(TOKENS, 8))
    token_ids = prompt(TOKENS, 9)
    expected = home.stored(token_ids)
    await_known(clients)
    cluster.relay.bytes_per_s = bytes_per_s
    assert patient.run(prompt(TOKENS, 8)).reuse.dram_tokens == 50 * BLOCK
    before = clients[1].stats()["peers"]
    answer = here.run(token_ids)
    here.settle()
    assert answer.token_ids == expected.token_ids
    num_blocks = answer.reuse.dram_tokens // BLOCK
    assert 10 < num_blocks < 40
    assert answer.reuse.bytes_by_transport == {"tcp": num_blocks * BLOCK_BYTES}
    assert not answer.reuse.recomputed
    assert here.engine.stats.store.loads_shortened == 1
    after = clients[1].stats()["peers"]
    assert after["filled_entries"] - before["filled_entries"] == num_blocks
    assert after["dropped_entries"] - before["dropped_entries"] == 50 - num_blocks


def test_a_step_waits_for_another_node_only_if_its_pace_is_known_and_nobody_else_waits(
    make_here: MakeBench,
) -> None:
    taught: list[LoadAdvisor] = []
    make_here(taught.append)
    [advisor] = taught
    prefill_at(advisor, 150.0)
    advisor.rates.note(REMOTE, 10_000_000, 10_000_000 / (2 * MBIT), time.monotonic())
    chooser = MeasuredChoice(advisor)
    sequence = Sequence(1, tuple(prompt(TOKENS)), Sampling())
    sequence.found = Found(0, (REMOTE,) * 50)
    alone = chooser.choose(sequence, range(50), Company.NOBODY)
    assert alone.overlaps
    assert 0 < len(alone.blocks) < 50
    for company in (Company.NEWCOMERS, Company.BATCH):
        beside = chooser.choose(sequence, range(50), company)
        assert not beside.overlaps or not beside.blocks
    unknown = Source(Tier.DRAM, "tcp", "never-seen")
    sequence.found = Found(0, (unknown,) * 50)
    assert not chooser.choose(sequence, range(50), Company.NOBODY).overlaps


def test_r51_a_handoff_that_trickles_in_is_computed_instead(
    cluster: SlowCluster, home: Bench, make_here: MakeBench, clients: list[StoreClient]
) -> None:
    """At 1 Mbit/s something of it comes all the time, for 7 s in all; computing takes far less."""
    here = make_here()
    nodes = TwoNodes(prefill=home, decode=here, source=cluster.home)
    before = clients[1].stats()["peers"]
    cluster.relay.bytes_per_s = MBIT
    split = nodes.hand_over(prompt(TOKENS, 11))
    nodes.settle()
    assert split.tokens == home.run(prompt(TOKENS, 11), 6).token_ids
    assert split.decode.reuse.recomputed
    store = here.engine.stats.store
    assert (store.loads_dropped, store.breaker_opened, store.tickets) == (1, 0, 0)
    for client in clients:
        wait_until(lambda each=client: holds_nothing(each), FREE_SECONDS, client.stats)
    assert clients[1].stats()["peers"]["dropped_entries"] > before["dropped_entries"]


@pytest.mark.parametrize("beside_batch", [False, True])
def test_r10_r51_what_a_dropped_load_may_still_write_is_not_used_before_it_has_stopped(
    make_bench: MakeBench, new_kv: NewKv, beside_batch: bool
) -> None:
    """A load from this node, of which nothing is heard: in a step, and beside a batch."""
    expected = make_bench(new_kv()).stored(prompt(50))
    holding = Holding(new_kv(), "submit_load")
    bench = make_bench(holding, load="auto", load_timeout_s=WAIT_SECONDS)
    decoding = bench.start(prompt(BLOCK - 1, 77), 300) if beside_batch else None
    bench.wait(lambda: not beside_batch or bench.engine.stats.output_tokens > 0)
    answer = bench.run(prompt(50))
    assert answer.token_ids == expected.token_ids
    assert (answer.reuse.dram_tokens, answer.reuse.recomputed) == (0, True)
    if decoding is not None:
        bench.engine.abort(decoding.id)
    bench.wait(lambda: bench.engine.stats.running == 0)
    store = bench.engine.stats.store
    assert (store.loads_dropped, store.tickets, store.breaker_opened) == (1, 0, 0)
    assert store.staging_bytes > 0
    holding.let_go()
    bench.settle()
