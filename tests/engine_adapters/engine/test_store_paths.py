"""The engine with a real store daemon: what is reused, what is stored, and that nothing the store
does changes an answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from moontide.engine_adapters.builtin.engine.kv_jobs import KvJobs
from moontide.engine_adapters.builtin.model import KVTensors, LoadedModel, SequenceChunk
from moontide.kvstore import JobResult, JobStatus, Namespace, StoreClient
from moontide.kvstore.errors import Busy, StoreError, StoreTimeout, StoreUnavailable

from ...waiting import Lateness, within
from .conftest import BLOCK, WAIT_SECONDS, MakeBench, NewKv
from .taps import AWAY, Altering, Delaying, Refusing, Tap, fail_block, lose, time_out
from .test_engine import prompt

BORDERS = [n * BLOCK + d for n in (1, 2, 3, 5, 8, 9, 16) for d in (-1, 0, 1)]
LOGITS_TOLERANCE = 1e-4
NUM_LAYERS = 4


def full_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK * BLOCK


def test_r06_cold_hbm_and_dram_are_equal(make_bench: MakeBench, new_kv: NewKv) -> None:
    """Tokens and first-token logits, for every length around the block borders."""
    assert len(BORDERS) >= 20
    cold, cached = make_bench(), make_bench(new_kv())
    for length in BORDERS:
        token_ids = prompt(length, length)
        expected = cold.run(token_ids, 8)
        logits = cold.decoder.last_of(length)
        for tier in ("cold", "hbm", "dram"):
            if tier == "dram":
                cached.settle()
                cached.clear()
            answer = cached.run(token_ids, 8)
            assert answer.token_ids == expected.token_ids, (length, tier)
            difference = cached.decoder.last_of(length) - logits
            assert float(difference.abs().max()) <= LOGITS_TOLERANCE, (length, tier)
            reused = {"hbm": answer.reuse.hbm_tokens, "dram": answer.reuse.dram_tokens}
            usable = full_blocks(length - 1)
            assert reused == {"hbm": 0, "dram": 0, **({tier: usable} if tier != "cold" else {})}
    cached.settle()


def test_r03_a_partial_block_is_never_stored_or_matched(
    make_bench: MakeBench, new_kv: NewKv, client: StoreClient, namespace: Namespace
) -> None:
    reader = client.kv(namespace)
    cold, cached = make_bench(), make_bench(new_kv())
    for length in [n * BLOCK + d for n in (1, 2, 4) for d in range(-1, 2)]:
        token_ids = prompt(length, 100 + length)
        answer = cached.run(token_ids, 3)
        cached.settle()
        cached.clear()
        computed = token_ids + answer.token_ids[:-1]  # the last one is sampled, never computed
        assert reader.lookup([*computed, 1, 2, 3]).num_tokens == full_blocks(len(computed))
        extended = token_ids + prompt(2 * BLOCK, length)
        again = cached.run(extended, 6)
        assert again.reuse.dram_tokens == full_blocks(length)
        assert again.token_ids == cold.run(extended, 6).token_ids


def test_the_next_turn_finds_prompt_and_answer(make_bench: MakeBench, new_kv: NewKv) -> None:
    bench = make_bench(new_kv())
    token_ids = prompt(29)
    answer = bench.run(token_ids, 30)
    bench.settle()
    bench.clear()
    turn = token_ids + answer.token_ids + prompt(5, 1)
    assert bench.run(turn).reuse.dram_tokens >= 29 + 30 - BLOCK


def test_r07_each_layer_is_stored_whole(
    make_bench: MakeBench,
    new_kv: NewKv,
    client: StoreClient,
    namespace: Namespace,
    model: LoadedModel,
) -> None:
    token_ids = prompt(64)
    bench = make_bench(new_kv(), max_batch_tokens=24)
    bench.run(token_ids, 1)
    bench.settle()
    reference = KVTensors(model.config, num_pages=8, page_tokens=BLOCK)
    model.decoder.forward([SequenceChunk(token_ids, 0, list(range(8)))], reference)
    with client.kv(namespace).reader(token_ids) as reader:
        assert reader.num_tokens == 64
        for layer in range(NUM_LAYERS):
            expected = reference.gather(layer, list(range(8)))
            for block, stored in enumerate(reader.layer(layer)):
                values = torch.frombuffer(bytearray(stored), dtype=torch.float32)
                assert torch.allclose(values, expected[block].flatten(), atol=1e-5)


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
def test_r07_a_late_layer_is_waited_for(make_bench: MakeBench, new_kv: NewKv, layer: int) -> None:
    expected = make_bench(new_kv()).stored(prompt(50))
    late = make_bench(Delaying(new_kv(), "submit_load", layer, 0.1))
    answer = late.run(prompt(50))
    assert answer.token_ids == expected.token_ids
    assert answer.reuse.dram_tokens == 48
    assert answer.reuse.first_layer_at is not None
    assert answer.reuse.last_layer_at is not None
    if layer > 0:
        assert answer.reuse.last_layer_at - answer.reuse.first_layer_at >= 0.09


FAILURES: dict[str, Callable[[KvJobs, int], Tap]] = {
    "refused": lambda kv, k: Refusing(kv, "submit_load", k, StoreUnavailable("gone")),
    "busy": lambda kv, k: Refusing(kv, "submit_load", k, Busy("queue full")),
    "first block gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(0)),
    "block 3 gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(3)),
    "last block gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(5)),
    "timed out": lambda kv, k: Altering(kv, "submit_load", k, time_out),
    "never answered": lambda kv, k: Altering(kv, "submit_load", k, lose),
}
KEPT_BLOCKS = {"block 3 gone": 3, "last block gone": 5}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("window_layers", [1, 4])
def test_r08_r09_any_failed_load_is_recomputed(
    make_bench: MakeBench, new_kv: NewKv, failure: str, window_layers: int
) -> None:
    """Load k fails, for every k; blocks before the failed one are kept."""
    token_ids = prompt(50)
    expected = make_bench(new_kv()).stored(token_ids, 10)
    storeless = make_bench()
    layer_bytes = 6 * 2 * 2 * BLOCK * 16 * 4
    for k in range(NUM_LAYERS):
        bench = make_bench(
            FAILURES[failure](new_kv(), k),
            load_timeout_s=0.15,
            staging_bytes=4 * window_layers * layer_bytes,
        )
        others = prompt(30, 9 + k)  # nothing of it is stored yet
        other = bench.start(others, 10)
        answer = bench.run(token_ids, 10)
        assert answer.token_ids == expected.token_ids, k
        assert answer.reuse.recomputed
        assert answer.reuse.dram_tokens == KEPT_BLOCKS.get(failure, 0) * BLOCK
        assert other.result().token_ids == storeless.run(others, 10).token_ids
        if failure != "never answered":
            bench.settle()


def test_r53_blocks_evicted_between_match_and_load_are_recomputed(
    make_bench: MakeBench, new_kv: NewKv, client: StoreClient
) -> None:
    expected = make_bench(new_kv()).stored(prompt(50))

    class Emptying(Tap):
        def around(self, name: str, number: int, call: Callable[[], object]) -> object:
            if name == "submit_load" and number == 0:
                client.clear()
            return call()

    bench = make_bench(Emptying(new_kv()))
    assert bench.run(prompt(50)).token_ids == expected.token_ids
    bench.settle()


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("away"), StoreTimeout("slow"), StoreError("odd"), OSError(5, "I/O error")],
)
@pytest.mark.parametrize(
    "call",
    ["*", "submit_lookup", "begin_store", "submit_store", "commit", "poll", "release", "fileno"],
)
def test_r27_a_failing_store_is_a_miss(
    make_bench: MakeBench, new_kv: NewKv, call: str, error: Exception
) -> None:
    bench = make_bench(
        Refusing(new_kv(), call, None, error), load_timeout_s=0.1, lookup_timeout_s=0.05
    )
    expected = make_bench().run(prompt(50))
    for _ in range(3):
        assert bench.run(prompt(50)).token_ids == expected.token_ids
        bench.clear()
    assert bench.engine.is_alive


def test_r52_a_silent_store_costs_little_and_comes_back(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    make_bench(new_kv()).stored(prompt(50))
    silent = Altering(new_kv(), "submit_lookup", None, lose)
    bench = make_bench(silent, lookup_timeout_s=0.2, breaker_cooldown_s=0.5)
    for seed in range(1, 4):
        bench.run(prompt(20, seed), 1)
    assert bench.engine.stats.store.breaker_opened == 1
    runs = []
    with Lateness() as machine:
        for seed in range(20, 40):
            started = time.monotonic()
            bench.run(prompt(20, seed), 1)
            runs.append((started, time.monotonic()))
    waits = sorted(end - begin - machine.between(begin, end) for begin, end in runs)
    assert waits[len(waits) // 2] < 0.05
    silent.change = lambda result: result
    bench.clear()

    def hits() -> bool:
        bench.clear()
        return bench.run(prompt(50), 1).reuse.dram_tokens == 48

    bench.wait(hits, 5.0)


def test_a_refused_layer_does_not_count_as_stored(make_bench: MakeBench, new_kv: NewKv) -> None:
    bench = make_bench(Refusing(new_kv(), "submit_store", None, AWAY))
    bench.run(prompt(50))
    bench.settle()
    store = bench.engine.stats.store
    assert (store.stores > 0, store.stores_given_up, store.stored_bytes) == (True, store.stores, 0)


def test_a_full_store_skips_stores_only(make_bench: MakeBench, new_kv: NewKv) -> None:
    """Staging for one layer of one block: everything larger is not stored."""
    bench = make_bench(new_kv(), staging_bytes=2 * 2 * BLOCK * 16 * 4)
    assert bench.run(prompt(50)).token_ids == make_bench().run(prompt(50)).token_ids
    bench.settle()
    assert bench.engine.stats.store.stores_given_up > 0


def test_r04_a_load_never_writes_a_shared_page(make_bench: MakeBench, new_kv: NewKv) -> None:
    """A reader of the shared blocks decodes on while others load and compute beyond them."""
    shared = prompt(40)
    longer = [shared + prompt(40, seed) for seed in range(1, 5)]
    reference = make_bench(new_kv())
    expected = reference.run(shared, 60).token_ids
    for each in longer:
        reference.run(each, 1)
    reference.settle()
    bench = make_bench(new_kv())
    reader = bench.start(shared, 60)
    bench.wait(lambda: bench.engine.stats.output_tokens > 0)
    for each in longer:
        answer = bench.run(each, 1)
        assert (answer.reuse.hbm_tokens, answer.reuse.dram_tokens) == (40, 32)
    assert reader.result().token_ids == expected


def test_a_store_that_lost_blocks_is_given_them_again(
    make_bench: MakeBench, new_kv: NewKv, client: StoreClient
) -> None:
    bench = make_bench(new_kv())
    bench.run(prompt(50))
    bench.settle()
    client.clear()
    assert bench.run(prompt(50)).reuse.hbm_tokens == 48
    bench.settle()
    bench.clear()
    assert bench.run(prompt(50)).reuse.dram_tokens == 48


STATES = ("lookup", "waiting", "loading", "storing", "decoding")


def test_r17_an_abort_in_any_state_frees_everything(
    make_bench: MakeBench, new_kv: NewKv, client: StoreClient
) -> None:
    aborts_in_every_state(make_bench, new_kv, client, rounds=20)


def test_r17_an_abort_ends_a_wait_for_the_store_at_once(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    make_bench(new_kv()).stored(prompt(60))
    stuck = Delaying(new_kv(), "submit_load", None, 3.0)
    bench = make_bench(stuck, load_timeout_s=60.0)
    request = bench.start(prompt(60))
    bench.wait(lambda: stuck.calls["submit_load"] > 0)
    bench.engine.abort(request.id)
    with within(1.0):
        assert request.result().finish == "abort"
    assert bench.engine.stats.store.breaker_opened == 0
    bench.settle()


def test_a_store_that_refuses_pins_is_a_miss_and_not_left_alone(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    """It answers at once, so nothing is gained by not asking: new blocks are stored all the
    same."""

    def refuse(result: JobResult) -> JobResult:
        return replace(result, status=JobStatus.FAILED, reason="out_of_space: …", hit=None)

    bench = make_bench(Altering(new_kv(), "submit_lookup", None, refuse))
    for seed in range(6):
        bench.stored(prompt(20, seed))
    stats = bench.engine.stats.store
    assert (stats.lookups_unanswered, stats.breaker_opened, stats.stores_given_up) == (6, 0, 0)
    assert stats.stores >= 6


def test_what_waits_stays_pinned_during_a_step(
    make_bench: MakeBench, new_kv: NewKv, model: LoadedModel
) -> None:
    """However long the step is: pins are renewed between its layers."""
    tap = Tap(new_kv())
    renewals_in_steps: list[int] = []

    class Watching:
        def forward(self, *args: Any) -> torch.Tensor:
            before = tap.calls["renew"]
            logits = model.decoder.forward(*args)
            renewals_in_steps.append(tap.calls["renew"] - before)
            return logits

    make_bench(new_kv()).stored(prompt(50))
    bench = make_bench(tap, max_running=1, pin_s=0.003, decoder=Watching())
    running = bench.start(prompt(9, 1), 60)
    running.outputs.get(timeout=10)
    waiting = bench.start(prompt(50))
    assert running.result().finish == waiting.result().finish == "length"
    assert sum(renewals_in_steps) > 0
    bench.settle()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_r17_a_thousand_aborts(make_bench: MakeBench, new_kv: NewKv, client: StoreClient) -> None:
    aborts_in_every_state(make_bench, new_kv, client, rounds=200)


def aborts_in_every_state(
    make_bench: MakeBench, new_kv: NewKv, client: StoreClient, rounds: int
) -> None:
    rng = random.Random(17)
    stored = make_bench(new_kv())
    stored.stored(prompt(400), 1)
    # Tickets whose lookups other tests lost on purpose end with their TTL.
    stored.wait(lambda: holds_nothing(client), 15.0)
    slow = Delaying(new_kv(), "none", None, 0.02)
    bench = make_bench(slow, max_running=2, load_timeout_s=1.0)
    for _ in range(rounds):
        for state in STATES:
            slow.name = {"lookup": "submit_lookup", "loading": "submit_load"}.get(state, "none")
            blockers = [bench.start(prompt(9, 1), 8) for _ in range(2 * (state == "waiting"))]
            fresh = prompt(200, rng.randrange(1 << 30))
            request = bench.start(fresh if state == "storing" else prompt(400), 40)
            if state == "decoding":
                request.outputs.get(timeout=WAIT_SECONDS)
            time.sleep(rng.random() * 0.02)  # any moment of the state
            bench.engine.abort(request.id)
            for blocker in blockers:
                blocker.result()
            request.result()
            bench.settle()
            bench.clear()
            bench.wait(lambda: holds_nothing(client), 5.0)
    bench.wait(lambda: bench.engine.stats.pages_idle == 0)


def holds_nothing(client: StoreClient) -> bool:
    """Nobody holds anything in the store."""
    stats = client.stats()
    return not any(stats[name] for name in ("pins", "tickets", "in_flight", "quarantined"))


def test_the_store_hears_what_the_device_gained_and_lost(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    class Listening(Tap):
        held: set[bytes]

        def publish_hbm(self, stored: list[bytes], removed: list[bytes]) -> None:
            self.held = (getattr(self, "held", set()) | set(stored)) - set(removed)

    listening = Listening(new_kv())
    bench = make_bench(listening, num_pages=8)
    bench.stored(prompt(50))
    bench.wait(lambda: len(listening.held) == 50 // BLOCK)
    bench.stored(prompt(50, 1))
    bench.wait(lambda: len(listening.held) <= 8)
    bench.clear()
    bench.wait(lambda: not listening.held)
