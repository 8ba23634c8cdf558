"""Hand-offs from one engine to another through two real stores: tokens, evidence, ends."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moontide.engine_adapters.builtin.engine.kv_jobs import KvJobs
from moontide.engine_adapters.builtin.engine.sequence import ReceiveHandoff
from moontide.kvstore import BlockKey, JobResult, Namespace, StoreClient, Tier, connect
from moontide.kvstore.errors import StoreUnavailable

from ...store_process import StartStore, StoreProcess, start_nodes
from ...waiting import wait_until, within
from .conftest import BLOCK, MakeBench
from .taps import Altering, Delaying, Refusing, Tap, fail_block, lose, time_out
from .test_engine import prompt
from .test_store_paths import full_blocks, holds_nothing
from .two_nodes import MakeNodes, TwoNodes

BORDERS = [n * BLOCK + d for n in (1, 2, 5, 8) for d in (-1, 0, 1)]
LAYER_BYTES = 2 * 2 * BLOCK * 16 * 4  # of one block
NUM_LAYERS = 4
Wrap = Callable[[KvJobs], KvJobs]


@pytest.fixture(scope="module")
def stores(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> list[StoreProcess]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    return start_nodes(module_store_daemon, folder, 2, "--dram", "32MiB", "--segment", "4MiB")


@pytest.fixture
def clients(stores: list[StoreProcess]) -> Iterator[list[StoreClient]]:
    """Of empty daemons, in which nobody holds anything."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(f"unix:{store.socket}")) for store in stores]
        await_nothing_held(clients, 15.0)  # what other tests lost on purpose ends with its TTL
        for client in clients:
            client.clear()
        yield clients


@pytest.fixture
def make_nodes(
    make_bench: MakeBench,
    namespace: Namespace,
    stores: list[StoreProcess],
    clients: list[StoreClient],
) -> MakeNodes:
    def make(wrap: Wrap = lambda kv: kv, **decode: object) -> TwoNodes:
        """`wrap` puts something between the decode engine and its store."""
        here, there = clients
        return TwoNodes(
            prefill=make_bench(here.kv(namespace)),
            decode=make_bench(wrap(there.kv(namespace)), **decode),
            source=stores[0],
        )

    return make


def settle(nodes: TwoNodes, clients: list[StoreClient]) -> None:
    """Nothing is held by anybody, within the time an abort may take."""
    nodes.settle()
    await_nothing_held(clients)


def await_nothing_held(clients: list[StoreClient], seconds: float = 5.0) -> None:
    for client in clients:
        wait_until(lambda each=client: holds_nothing(each), seconds, client.stats)


def test_r06_a_split_run_equals_a_cold_one(
    make_bench: MakeBench, make_nodes: MakeNodes, clients: list[StoreClient]
) -> None:
    """Tokens, and the logits of the first token that the decode worker samples."""
    cold, nodes = make_bench(), make_nodes()
    for length in BORDERS:
        token_ids = prompt(length, length)
        expected = cold.run(token_ids, 6)
        split = nodes.hand_over(token_ids, 6)
        assert (split.tokens, split.text) == (expected.token_ids, expected.text), length
        assert (split.prefill.finish, split.decode.finish) == ("length", "length")
        difference = nodes.decode.decoder.last_of(length + 1) - cold.decoder.last_of(length + 1)
        assert float(difference.abs().max()) <= 1e-4, length
        reuse = split.decode.reuse
        assert (reuse.dram_tokens, reuse.recomputed) == (length, False), length
        num_bytes = -(-length // BLOCK) * NUM_LAYERS * LAYER_BYTES
        assert reuse.bytes_by_transport == {"tcp": num_bytes}
        assert reuse.bytes_by_tier == {Tier.DRAM: num_bytes}
        assert reuse.first_layer_at is not None
        assert reuse.last_layer_at is not None
        assert reuse.first_layer_at <= reuse.last_layer_at
    settle(nodes, clients)
    assert nodes.decode.engine.stats.steps == len(BORDERS) * 5  # it computed no prompt


def test_sampled_tokens_do_not_depend_on_who_samples(
    make_bench: MakeBench, make_nodes: MakeNodes
) -> None:
    sampled = {"temperature": 1.0, "seed": 11}
    expected = make_bench().run(prompt(29), 12, **sampled)
    split = make_nodes().hand_over(prompt(29), 12, **sampled)
    assert (split.tokens, split.text) == (expected.token_ids, expected.text)


def test_the_device_gives_what_it_has(make_nodes: MakeNodes) -> None:
    nodes = make_nodes()
    nodes.decode.run(prompt(43), 1)
    split = nodes.hand_over(prompt(43), 4)
    assert (split.decode.reuse.hbm_tokens, split.decode.reuse.dram_tokens) == (40, 3)
    again = nodes.hand_over(prompt(40), 4)
    assert (again.decode.reuse.hbm_tokens, again.decode.reuse.loaded_bytes) == (40, 0)
    nodes.settle()


def test_r04_a_handoff_never_writes_a_shared_page(make_nodes: MakeNodes) -> None:
    """A reader of the shared blocks decodes on while others are received beyond them."""
    nodes = make_nodes()
    shared = prompt(40)
    expected = nodes.prefill.run(shared, 60).token_ids
    reader = nodes.decode.start(shared, 60)
    nodes.decode.wait(lambda: nodes.decode.engine.stats.output_tokens > 0)
    for seed in range(4):
        split = nodes.hand_over(shared + prompt(21, 1 + seed), 3)
        assert split.decode.reuse.hbm_tokens == 40
    assert reader.result().token_ids == expected


def test_what_was_handed_over_stays_for_the_next_turn(make_nodes: MakeNodes) -> None:
    nodes = make_nodes()
    split = nodes.hand_over(prompt(29), 30)
    nodes.settle()
    nodes.decode.clear()
    turn = prompt(29) + split.tokens + prompt(5, 1)
    again = nodes.decode.run(turn)
    assert again.reuse.dram_tokens == full_blocks(29 + 30 - 1)
    assert again.reuse.bytes_by_transport.keys() == {"shm"}


FAILURES: dict[str, Callable[[KvJobs, int], Tap]] = {
    "refused": lambda kv, k: Refusing(kv, "submit_load", k, StoreUnavailable("gone")),
    "first block gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(0)),
    "block 3 gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(3)),
    "the tail gone": lambda kv, k: Altering(kv, "submit_load", k, fail_block(6)),
    "timed out": lambda kv, k: Altering(kv, "submit_load", k, time_out),
    "never answered": lambda kv, k: Altering(kv, "submit_load", k, lose),
    "fetch refused": lambda kv, k: Refusing(kv, "submit_fetch", 0, StoreUnavailable("gone")),
    "fetch never answered": lambda kv, k: Altering(kv, "submit_fetch", 0, lose),
}
KEPT = {"block 3 gone": 3 * BLOCK, "the tail gone": 6 * BLOCK}


@pytest.mark.parametrize("failure", FAILURES)
def test_r08_r09_what_does_not_come_is_computed(
    make_bench: MakeBench, make_nodes: MakeNodes, failure: str
) -> None:
    """Load k of a hand-off fails, for every k."""
    token_ids = prompt(51)
    expected = make_bench().run(token_ids, 8)
    for k in range(1 if failure.startswith("fetch") else NUM_LAYERS):
        nodes = make_nodes(lambda kv, k=k: FAILURES[failure](kv, k), load_timeout_s=0.3, pin_s=1.0)
        split = nodes.hand_over(token_ids, 8)
        assert (split.tokens, split.text) == (expected.token_ids, expected.text), k
        assert split.decode.reuse.recomputed
        assert split.decode.reuse.dram_tokens == KEPT.get(failure, 0)


def test_r08_a_prefill_worker_that_stores_nothing_costs_a_recompute(
    make_bench: MakeBench, make_nodes: MakeNodes, clients: list[StoreClient]
) -> None:
    nodes = make_nodes(load_timeout_s=0.3)
    nodes.prefill = make_bench()
    expected = make_bench().run(prompt(51), 8)
    split = nodes.hand_over(prompt(51), 8)
    assert split.tokens == expected.token_ids
    assert split.decode.reuse.recomputed
    settle(nodes, clients)


def test_a_running_batch_does_not_wait_for_a_handoff(make_nodes: MakeNodes) -> None:
    """Its blocks never come; the others decode on."""
    nodes = make_nodes()
    decoding = nodes.decode.start(prompt(20), 40)
    receiver = nodes.receive(prompt(51, 1))
    assert receiver.reserved.wait(5.0)
    assert len(decoding.result().token_ids) == 40
    assert receiver.outputs.empty()
    nodes.decode.engine.abort(receiver.id)
    assert receiver.result().finish == "abort"
    nodes.settle()


def test_a_handoff_whose_blocks_never_come_ends_at_its_deadline(make_nodes: MakeNodes) -> None:
    nodes = make_nodes(handoff_timeout_s=1.0)
    receiver = nodes.receive(prompt(51, 1))
    assert receiver.reserved.wait(5.0)
    with within(2.0):
        last = receiver.outputs.get(timeout=5.0)
    assert (last.finish, "within 1 s" in last.message) == ("error", True)
    nodes.settle()


LONG = pytest.mark.timeout(900)
STATES = ("queued", "reserved", "fetching", "loading", "whole", "with token 1", "decoding")


@pytest.mark.parametrize("rounds", [1, pytest.param(140, marks=[pytest.mark.soak, LONG])])
def test_r17_a_handoff_aborted_in_any_state_frees_everything(
    make_nodes: MakeNodes, clients: list[StoreClient], rounds: int
) -> None:
    slow: list[Delaying] = []

    def wrap(kv: KvJobs) -> KvJobs:
        slow.append(Delaying(kv, "none", None, 0.05))
        return slow[0]

    nodes = make_nodes(wrap, max_running=1)
    for number, state in enumerate(STATES * rounds):
        slow[0].name = {"fetching": "submit_fetch", "loading": "submit_load"}.get(state, "none")
        blocker = nodes.decode.start(prompt(9), 40) if state == "queued" else None
        token_ids = prompt(60, 100 + number)
        receiver = nodes.receive(token_ids, 40)
        if state != "queued":
            assert receiver.reserved.wait(5.0)
        sender = nodes.compute(token_ids, 40) if state not in ("queued", "reserved") else None
        if sender is not None and state != "fetching":
            token = sender.result().token_ids[0]
            if state in ("with token 1", "decoding"):
                nodes.decode.engine.give_first_token(receiver.id, token)
            if state == "decoding":
                receiver.outputs.get(timeout=5.0)
        nodes.decode.engine.abort(receiver.id)
        assert receiver.result().finish == "abort"
        for other in (blocker, sender if state == "fetching" else None):
            if other is not None:
                other.result()
        settle(nodes, clients)


def test_r17_the_end_of_the_engine_frees_a_handoff(
    make_nodes: MakeNodes, clients: list[StoreClient]
) -> None:
    nodes = make_nodes()
    receiver = nodes.receive(prompt(60))
    nodes.decode.wait(lambda: nodes.decode.engine.stats.store.tickets == 1)
    assert nodes.decode.engine.close()
    assert receiver.result().finish == "error"
    await_nothing_held(clients)


def test_r25_a_store_of_a_former_life_is_no_source(
    make_bench: MakeBench, make_nodes: MakeNodes
) -> None:
    nodes = make_nodes()
    handoff = ReceiveHandoff(BlockKey(bytes(16)), "node-a/1/" + "00" * 16)
    receiver = nodes.decode.start(prompt(30), handoff=handoff)
    assert receiver.reserved.wait(5.0)
    expected = make_bench().run(prompt(30))
    nodes.decode.engine.give_first_token(receiver.id, expected.token_ids[0])
    answer = receiver.result()
    assert answer.token_ids == expected.token_ids[1:]
    assert answer.reuse.recomputed
    nodes.settle()


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_r11_handoffs_and_plain_requests_in_a_small_pool_equal_the_serial_run(
    make_bench: MakeBench, make_nodes: MakeNodes, rounds: int, clients: list[StoreClient]
) -> None:
    """A quarter of the pages that all together need; R22: all of them end."""
    prompts = [prompt(20 + 2 * number, number % 5) for number in range(32)]
    serial = make_bench()
    expected = [serial.run(each, 20).token_ids for each in prompts]
    nodes = make_nodes(num_pages=60, max_running=16, load_timeout_s=1.0)
    for _ in range(rounds):
        plain = [nodes.decode.start(each, 20) for each in prompts[::2]]
        handed = []
        for each in prompts[1::2]:
            receiver = nodes.receive(each, 20)
            handed.append((receiver, nodes.compute(each, 20)))
        firsts = []
        for receiver, sender in handed:
            firsts.append(sender.result().token_ids)
            nodes.decode.engine.give_first_token(receiver.id, firsts[-1][0])
        for request, tokens in zip(plain, expected[::2], strict=True):
            assert request.result().token_ids == tokens
        for (receiver, _), first, tokens in zip(handed, firsts, expected[1::2], strict=True):
            assert first + receiver.result().token_ids == tokens
        settle(nodes, clients)
    assert nodes.decode.engine.stats.preemptions > 0


def test_token_1_may_be_told_before_the_pages_are_reserved(
    make_bench: MakeBench, make_nodes: MakeNodes
) -> None:
    nodes = make_nodes(max_running=1)
    blocker = nodes.decode.start(prompt(9), 30)
    receiver = nodes.receive(prompt(43), 5)
    first = nodes.compute(prompt(43), 5).result()
    nodes.decode.engine.give_first_token(receiver.id, first.token_ids[0])
    blocker.result()
    tokens = first.token_ids + receiver.result().token_ids
    assert tokens == make_bench().run(prompt(43), 5).token_ids


def test_token_1_that_ends_the_answer_ends_it(make_nodes: MakeNodes) -> None:
    """At the prefill worker it is "length", unless the token itself says stop."""
    nodes = make_nodes()
    split = nodes.hand_over(prompt(30), 1)
    assert (split.prefill.finish, split.decode.finish) == ("length", "length")
    assert (len(split.prefill.token_ids), split.decode.token_ids) == (1, [])
    text = nodes.prefill.run(list(b"once"), 1).text
    if text:
        stopped = nodes.compute(list(b"once"), 8, stop=(text[0],)).result()
        assert stopped.finish == "stop"
    nodes.settle()


def test_a_tail_carries_nothing_of_the_page_it_lay_in(
    make_nodes: MakeNodes, clients: list[StoreClient], namespace: Namespace
) -> None:
    """What is beyond the prompt goes out as zeros."""
    nodes = make_nodes()
    nodes.prefill.run(prompt(400), 1)
    nodes.prefill.clear()
    nodes.key = BlockKey(secrets.token_bytes(16))
    nodes.compute(prompt(3, 5), 2).result()
    kv = clients[1].kv(namespace)
    result: list[JobResult] = []
    job = kv.submit_fetch(
        prompt(3, 5), source=nodes.source.instance, request_block=nodes.key, deadline_s=5.0
    )

    def has_come() -> bool:
        result.extend(kv.poll())
        return bool(result)

    nodes.decode.wait(has_come)
    assert result[0].job == job
    assert result[0].hit is not None
    buffer = bytearray(LAYER_BYTES)
    assert not kv.load(result[0].hit.ticket, [1], [[buffer]]).failed_blocks
    kv.release(result[0].hit.ticket)
    row = 16 * 4
    tokens = [buffer[start : start + row] for start in range(0, LAYER_BYTES, row)]
    assert [any(token) for token in tokens] == [True] * 3 + [False] * 5 + (
        [True] * 3 + [False] * 5
    ) * 3
