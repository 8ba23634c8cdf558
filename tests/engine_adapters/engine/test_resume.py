"""An answer that goes on at another worker is the one an unbroken run gives."""

from __future__ import annotations

from typing import Any

import pytest

from moontide.engine_adapters.builtin.errors import InvalidRequest

from .conftest import BLOCK, Answer, Bench, MakeBench, NewKv
from .test_engine import prompt

NUM_TOKENS = 24
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 5}


def resumed(bench: Bench, token_ids: list[int], whole: Answer, at: int, **sampling: Any) -> Answer:
    """The rest of `whole` after its first `at` tokens."""
    known = token_ids + whole.token_ids[:at]
    return bench.run(known, NUM_TOKENS, num_resumed=at, **sampling)


def text_before(bench: Bench, token_ids: list[int], at: int, **sampling: Any) -> str:
    """What a client was shown when its worker died after `at` tokens."""
    request = bench.start(token_ids, NUM_TOKENS, **sampling)
    text, tokens = "", 0
    while tokens < at:
        output = request.outputs.get(timeout=10)
        text += output.text
        tokens += len(output.token_ids)
        assert tokens == at or output.finish is None
    bench.engine.abort(request.id)
    return text


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_r06_a_resumed_answer_has_no_repeat_and_no_gap(
    make_bench: MakeBench, sampling: dict[str, Any]
) -> None:
    """Cut after every token; the tiny model's text is full of broken UTF-8."""
    first, second = make_bench(), make_bench()
    token_ids = prompt(21)
    whole = first.run(token_ids, NUM_TOKENS, **sampling)
    for at in range(1, NUM_TOKENS):
        before = text_before(first, token_ids, at, **sampling)
        rest = resumed(second, token_ids, whole, at, **sampling)
        assert rest.token_ids == whole.token_ids[at:], at
        assert before + rest.text == whole.text, at
        assert rest.finish == "length"


def test_a_stop_string_across_the_border_is_seen(make_bench: MakeBench) -> None:
    first, second = make_bench(), make_bench()
    for seed in range(3):
        token_ids = prompt(21, seed)
        free = first.run(token_ids, NUM_TOKENS)
        middle = len(free.text) // 2
        stop = free.text[middle - 1 : middle + 2]
        whole = first.run(token_ids, NUM_TOKENS, stop=(stop,))
        assert whole.finish == "stop"
        for at in range(1, len(whole.token_ids)):
            before = text_before(first, token_ids, at, stop=(stop,))
            rest = resumed(second, token_ids, whole, at, stop=(stop,))
            assert (before + rest.text, rest.finish) == (whole.text, "stop"), (seed, at)
            assert rest.token_ids == whole.token_ids[at:]


def test_an_answer_that_was_whole_ends_at_once(make_bench: MakeBench) -> None:
    """Its last words are said if they were not certain before."""
    first, second = make_bench(), make_bench()
    token_ids = prompt(21)
    whole = first.run(token_ids, NUM_TOKENS)
    safe = text_before(first, token_ids, NUM_TOKENS - 1)
    rest = resumed(second, token_ids, whole, NUM_TOKENS)
    assert (rest.token_ids, rest.finish) == ([], "length")
    assert whole.text.endswith(rest.text)
    assert len(safe) + len(rest.text) <= len(whole.text)
    ended = second.run([*token_ids, 257], 9, num_resumed=1, ignore_eos=False)
    assert (ended.token_ids, ended.finish) == ([], "stop")
    second.settle()


def test_a_resumed_answer_finds_its_blocks_in_the_pool(
    make_bench: MakeBench, new_kv: NewKv
) -> None:
    first, second = make_bench(new_kv()), make_bench(new_kv())
    token_ids = prompt(21)
    whole = first.stored(token_ids, NUM_TOKENS)
    rest = resumed(second, token_ids, whole, 20)
    assert rest.token_ids == whole.token_ids[20:]
    assert rest.reuse.dram_tokens == (21 + 20 - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("num_resumed", [-1, 21, 30])
def test_more_resumed_tokens_than_the_prompt_has_are_refused(
    make_bench: MakeBench, num_resumed: int
) -> None:
    with pytest.raises(InvalidRequest, match=rf"{num_resumed}; the prompt has 21"):
        make_bench().start(prompt(21), num_resumed=num_resumed)
