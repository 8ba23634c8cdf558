"""When a row is right: pure functions over what was asked for and what was seen."""

from __future__ import annotations

from dataclasses import dataclass

from .client import Reply
from .prompts import BLOCK_TOKENS
from .report import Case


@dataclass(frozen=True, slots=True)
class StoreTraffic:
    """What the store counted while a request ran."""

    bytes_in: int
    bytes_out: int


def full_blocks(num_tokens: int) -> int:
    """Tokens of the full blocks that a prompt of `num_tokens` can take from a cache: its last token
    is always computed."""
    return (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def tier_of(reply: Reply) -> str:
    tiers = sorted(tier for tier, count in reply.evidence.cached_by_tier.items() if count)
    return "+".join(tiers) or "none"


def faults(
    case: Case,
    reply: Reply,
    *,
    reference: Reply,
    at_least: int,
    kv_token_bytes: int,
    store: StoreTraffic,
) -> list[str]:
    """What is wrong with a row; empty when it is right. `reference`: the same prompt computed cold;
    `at_least`: cached tokens expected."""
    found = []
    prompt = reply.usage.prompt_tokens
    cached = reply.usage.prompt_tokens_details.cached_tokens
    if reply.text != reference.text:
        found.append(f"text {reply.text!r} differs from the cold run's {reference.text!r}")
    if case == "cold" and cached:
        found.append(f"{cached} tokens were cached, a cold run has none")
    if case == "cold" and store.bytes_in < full_blocks(prompt) * kv_token_bytes:
        found.append(f"the store took {store.bytes_in} B in for {full_blocks(prompt)} tokens")
    if case != "cold" and cached < at_least:
        found.append(f"{cached} tokens were cached, at least {at_least} are expected")
    if cached % BLOCK_TOKENS or cached >= prompt:
        found.append(f"{cached} cached tokens are no full blocks of the prompt")
    if sum(reply.evidence.cached_by_tier.values()) != cached:
        found.append(f"tiers {reply.evidence.cached_by_tier} do not add up to {cached} tokens")
    if reply.evidence.recomputed:
        found.append("a load failed and was recomputed")
    return found + _tier_faults(case, reply, kv_token_bytes, store)


def _tier_faults(case: Case, reply: Reply, kv_token_bytes: int, store: StoreTraffic) -> list[str]:
    """Whether the bytes came from where the row says."""
    wanted = {"dram": "dram", "colocated": "hbm"}.get(case)
    found = []
    if wanted is not None and tier_of(reply) != wanted:
        found.append(f"the tier was {tier_of(reply)}, not {wanted}")
    for tier, tokens in reply.evidence.cached_by_tier.items():
        moved = reply.evidence.bytes_by_tier.get(tier, 0)
        if tier != "hbm" and moved < tokens * kv_token_bytes:
            found.append(
                f"{moved} B came from {tier}, {tokens} tokens are {tokens * kv_token_bytes} B"
            )
    from_dram = reply.evidence.cached_by_tier.get("dram", 0)
    if store.bytes_out < from_dram * kv_token_bytes or (store.bytes_out and not from_dram):
        found.append(f"the store counted {store.bytes_out} B out for {from_dram} tokens from dram")
    if from_dram and not _layers_in_order(reply):
        found.append("the times of first layer, last layer and end of prefill are out of order")
    return found


def _layers_in_order(reply: Reply) -> bool:
    first, last = reply.evidence.first_layer_at, reply.evidence.last_layer_at
    end = reply.evidence.prefill_end_at
    return first is not None and last is not None and end is not None and first <= last <= end
