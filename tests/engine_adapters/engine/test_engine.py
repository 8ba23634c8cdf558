"""The engine without a store: batching, ends, aborts, sampling, its own cache."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from moontide.engine_adapters.builtin.errors import EngineStopped, InvalidRequest, Overloaded
from moontide.engine_adapters.builtin.model import KVTensors, LoadedModel, SequenceChunk

from .conftest import BLOCK, Bench, MakeBench


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def greedy(model: LoadedModel, token_ids: Sequence[int], count: int) -> list[int]:
    """One token after the other through the bare decoder."""
    tensors = KVTensors(model.config, num_pages=64, page_tokens=BLOCK)
    pages, tokens, start, output = list(range(64)), list(token_ids), 0, []
    for _ in range(count):
        logits = model.decoder.forward([SequenceChunk(tokens[start:], start, pages)], tensors)
        start = len(tokens)
        output.append(int(torch.argmax(logits[0])))
        tokens.append(output[-1])
    return output


def test_chunks_and_batches_give_the_tokens_of_the_bare_decoder(
    make_bench: MakeBench, model: LoadedModel
) -> None:
    bench = make_bench(max_batch_tokens=24)
    prompts = [prompt(length, length) for length in (1, 7, 8, 9, 40, 65)]
    running = [bench.start(each) for each in prompts]
    for each, request in zip(prompts, running, strict=True):
        assert request.result().token_ids == greedy(model, each, 6)
    bench.settle()


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_r11_many_requests_in_a_small_pool_equal_the_serial_run(
    make_bench: MakeBench, model: LoadedModel, rounds: int
) -> None:
    prompts = [prompt(20 + 3 * number, number % 5) for number in range(16)]
    expected = [greedy(model, each, 24) for each in prompts]
    bench = make_bench(num_pages=28, max_running=16, max_batch_tokens=32)
    for _ in range(rounds):
        running = [bench.start(each, 24) for each in prompts]
        for request, tokens in zip(running, expected, strict=True):
            assert request.result().token_ids == tokens
    assert bench.engine.stats.preemptions > 0
    bench.settle()


def test_a_second_run_takes_its_blocks_from_the_device(make_bench: MakeBench) -> None:
    bench = make_bench()
    cold = bench.run(prompt(41))
    warm = bench.run(prompt(41))
    assert warm.token_ids == cold.token_ids
    assert (cold.reuse.hbm_tokens, warm.reuse.hbm_tokens) == (0, 40)
    bench.settle()
    assert bench.clear() > 0
    assert bench.run(prompt(41)).reuse.hbm_tokens == 0


def test_sampling_depends_on_seed_and_position_only(make_bench: MakeBench) -> None:
    bench = make_bench()
    alone = bench.run(prompt(20), 12, temperature=1.0, seed=7)
    others = [bench.start(prompt(30, number), 12) for number in range(3)]
    together = bench.run(prompt(20), 12, temperature=1.0, seed=7)
    for other in others:
        other.result()
    assert together.token_ids == alone.token_ids
    assert bench.run(prompt(20), 12, temperature=1.0, seed=8).token_ids != alone.token_ids


def test_text_ends_before_a_stop_string(make_bench: MakeBench) -> None:
    bench = make_bench()
    free = bench.run(list(b"once upon a time"), 24)
    stop = free.text[5:7]
    stopped = bench.run(list(b"once upon a time"), 24, stop=(stop,))
    assert stopped.finish == "stop"
    assert stopped.text == free.text[: free.text.index(stop)]


def test_an_end_of_sequence_token_ends_it(make_bench: MakeBench) -> None:
    bench = make_bench()
    answers = [
        bench.run(prompt(10, seed), 400, ignore_eos=False, temperature=2.0, seed=seed)
        for seed in range(4)
    ]
    ended = [answer for answer in answers if answer.finish == "stop"]
    assert ended
    assert all(answer.token_ids[-1] == 257 for answer in ended)


def test_output_is_clipped_to_the_context(make_bench: MakeBench) -> None:
    answer = make_bench().run(prompt(500), 100)
    assert len(answer.token_ids) == 12
    assert answer.finish == "length"


@pytest.mark.parametrize(
    ("token_ids", "both"),
    [
        (prompt(512), "512 tokens.*context is 512"),
        ([], "0 tokens"),
        ([1, 258], r"258.*0\.\.257"),
        (prompt(100), "100 tokens.*holds 64"),
    ],
)
def test_a_request_at_fault_is_refused_at_once(
    make_bench: MakeBench, token_ids: list[int], both: str
) -> None:
    bench = make_bench(num_pages=8 if len(token_ids) == 100 else 256)
    with pytest.raises(InvalidRequest, match=both):
        bench.start(token_ids)


def test_r55_a_full_queue_refuses_at_once(make_bench: MakeBench) -> None:
    bench = make_bench(max_running=1, max_waiting=2)
    taken = [bench.start(prompt(20, seed), 60) for seed in range(3)]
    with pytest.raises(Overloaded, match="takes 3"):
        bench.start(prompt(20))
    for request in taken:
        assert len(request.result().token_ids) == 60


def test_a_long_prefill_is_aborted_between_layers(make_bench: MakeBench) -> None:
    bench = make_bench(max_batch_tokens=512)
    request = bench.start(prompt(500))
    bench.engine.abort(request.id)
    assert request.result().finish == "abort"
    bench.settle()
    assert bench.run(prompt(500)).reuse.hbm_tokens in (0, 496)


def test_close_fails_what_is_unfinished(make_bench: MakeBench) -> None:
    bench = make_bench()
    request = bench.start(prompt(20), 400)
    assert bench.engine.close()
    assert request.result().finish == "error"
    with pytest.raises(EngineStopped):
        bench.start(prompt(20))


def test_a_dying_engine_thread_fails_its_requests(make_bench: MakeBench) -> None:
    class Broken:
        def forward(self, *args: object) -> torch.Tensor:
            raise RuntimeError("no such kernel")

    bench: Bench = make_bench(decoder=Broken())
    request = bench.start(prompt(20))
    assert request.result().finish == "error"
    bench.wait(lambda: not bench.engine.is_alive)
