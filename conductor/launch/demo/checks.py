"""When a row is right: pure functions over what was asked for and what both ends counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .client import Reply
from .prompts import BLOCK_TOKENS
from .report import Case, StoreTraffic


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: what its client saw, and what each node's store counted meanwhile."""

    reply: Reply
    stores: Mapping[str, StoreTraffic]

    @property
    def cached_tokens(self) -> int:
        return self.reply.usage.prompt_tokens_details.cached_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the row claims. `reference`: the same prompt computed cold; `at_least`: cached tokens;
    `node`: where the serving worker runs; `source`: the node the KV comes from."""

    case: Case
    reference: Reply
    at_least: int
    kv_token_bytes: int
    worker: str
    node: str
    source: str


def full_blocks(num_tokens: int) -> int:
    """Tokens of the full blocks that a prompt of `num_tokens` can take from a cache: its last token
    is always computed."""
    return (num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def tier_of(reply: Reply) -> str:
    tiers = sorted(tier for tier, count in reply.evidence.cached_by_tier.items() if count)
    return "+".join(tiers) or "none"


def faults(expected: Expected, seen: Seen) -> list[str]:
    """What is wrong with a row; empty when it is right."""
    return [*_common(expected, seen), *_RULES[expected.case](expected, seen)]


def _common(expected: Expected, seen: Seen) -> list[str]:
    found = []
    reply, cached = seen.reply, seen.cached_tokens
    if reply.text != expected.reference.text:
        found.append(f"text {reply.text!r} differs from the cold run's {expected.reference.text!r}")
    if warm := expected.reference.usage.prompt_tokens_details.cached_tokens:
        found.append(f"{warm} tokens of the cold run it is compared with were cached")
    if reply.worker != expected.worker:
        found.append(f"worker {reply.worker} served it, not {expected.worker}")
    if cached < expected.at_least:
        found.append(f"{cached} tokens were cached, at least {expected.at_least} are expected")
    if cached % BLOCK_TOKENS or cached >= reply.usage.prompt_tokens:
        found.append(f"{cached} cached tokens are no full blocks of the prompt")
    tiers = reply.evidence.cached_by_tier
    if expected.case != "split" and sum(tiers.values()) != cached:  # there: what was handed over
        found.append(f"tiers {tiers} do not add up to {cached} tokens")
    if reply.evidence.recomputed:
        found.append("a load failed and was recomputed")
    return found


def _cold(expected: Expected, seen: Seen) -> list[str]:
    wanted = full_blocks(seen.reply.usage.prompt_tokens) * expected.kv_token_bytes
    taken = seen.stores[expected.node].dram_bytes_in
    return [
        *_nothing_cached(seen),
        *_at_least(f"{expected.node} took in", taken, wanted),
        *_silent_between_nodes(seen),
    ]


def _dram(expected: Expected, seen: Seen) -> list[str]:
    given = seen.stores[expected.node].dram_bytes_out
    return [
        *_only_from("dram", "shm", expected, seen),
        *_at_least(f"{expected.node} gave from dram", given, _cached_bytes(expected, seen)),
        *_silent_between_nodes(seen),
    ]


def _colocated(expected: Expected, seen: Seen) -> list[str]:
    found = _tier_is("hbm", seen)
    for node, store in seen.stores.items():
        if store.dram_bytes_out:
            found.append(f"{node} gave {store.dram_bytes_out} B, the engine had all")
    return [*found, *_silent_between_nodes(seen)]


def _second_turn(expected: Expected, seen: Seen) -> list[str]:
    """From the engine's own blocks, as far as it still has them, and from its node's DRAM."""
    found = []
    tokens = seen.reply.evidence.cached_by_tier
    if colder := {tier for tier, count in tokens.items() if count} - {"hbm", "dram"}:
        found.append(f"tokens came from {', '.join(sorted(colder))}, not from hbm and dram")
    wanted = tokens.get("dram", 0) * expected.kv_token_bytes
    moved = seen.reply.evidence.bytes_by_tier.get("dram", 0)
    return [*found, *_at_least("from dram came", moved, wanted), *_silent_between_nodes(seen)]


def _nvme(expected: Expected, seen: Seen) -> list[str]:
    store = seen.stores[expected.node]
    return [
        *_only_from("nvme", "file", expected, seen),
        *_dram_was_empty(expected.node, seen),
        *_at_least(
            f"{expected.node} read from its files",
            store.file_bytes_in,
            _cached_bytes(expected, seen),
        ),
        *_silent_between_nodes(seen),
    ]


def _remote(expected: Expected, seen: Seen) -> list[str]:
    return [
        *_only_from("dram", "tcp", expected, seen),
        *_dram_was_empty(expected.node, seen),
        *_nvme_was_empty(expected.node, seen),
        *_crossed(expected, seen, _cached_bytes(expected, seen)),
    ]


def _split(expected: Expected, seen: Seen) -> list[str]:
    """The prompt was cold everywhere, and its KV came layer by layer while it was computed."""
    wanted = full_blocks(seen.reply.usage.prompt_tokens) * expected.kv_token_bytes
    evidence = seen.reply.evidence
    found = _nothing_cached(seen)
    for node in seen.stores:
        found += [*_dram_was_empty(node, seen), *_nvme_was_empty(node, seen)]
    found += _at_least("over tcp came", evidence.bytes_by_transport.get("tcp", 0), wanted)
    found += _crossed(expected, seen, wanted)
    first, last, end = evidence.first_layer_at, evidence.last_layer_at, evidence.prefill_end_at
    if first is None or last is None or end is None or not (first <= last and first < end):
        found.append(
            f"the first layer came at {first}, the last at {last}, prefill ended at {end}: the "
            "first has to come before the end"
        )
    return found


def _nothing_cached(seen: Seen) -> list[str]:
    cached = seen.cached_tokens
    return [f"{cached} tokens were cached, a cold run has none"] if cached else []


def _only_from(tier: str, transport: str, expected: Expected, seen: Seen) -> list[str]:
    """All cached tokens came from there, that way, and in time."""
    evidence, wanted = seen.reply.evidence, _cached_bytes(expected, seen)
    found = [
        *_tier_is(tier, seen),
        *_at_least(f"from {tier} came", evidence.bytes_by_tier.get(tier, 0), wanted),
        *_at_least(f"over {transport} came", evidence.bytes_by_transport.get(transport, 0), wanted),
    ]
    first, last, end = evidence.first_layer_at, evidence.last_layer_at, evidence.prefill_end_at
    if first is None or last is None or end is None or not first <= last <= end:
        found.append(
            f"the first layer came at {first}, the last at {last}, prefill ended at {end}: out of "
            "order"
        )
    return found


def _tier_is(tier: str, seen: Seen) -> list[str]:
    found = tier_of(seen.reply)
    return [] if found == tier else [f"the tier was {found}, not {tier}"]


def _crossed(expected: Expected, seen: Seen, wanted: int) -> list[str]:
    """Both ends counted the bytes that went from `source` to `node`."""
    gave = seen.stores[expected.source].tcp_bytes_out
    took = seen.stores[expected.node].tcp_bytes_in
    return [
        *_at_least(f"{expected.source} gave over tcp", gave, wanted),
        *_at_least(f"{expected.node} took over tcp", took, wanted),
    ]


def _silent_between_nodes(seen: Seen) -> list[str]:
    return [
        f"{node} moved {store.tcp_bytes_in + store.tcp_bytes_out} B over tcp; the row claims none"
        for node, store in seen.stores.items()
        if store.tcp_bytes_in + store.tcp_bytes_out
    ]


def _dram_was_empty(node: str, seen: Seen) -> list[str]:
    held = seen.stores[node].dram_entries_before
    return [f"{node} held {held} entries in dram before"] if held else []


def _nvme_was_empty(node: str, seen: Seen) -> list[str]:
    held = seen.stores[node].nvme_entries_before
    return [f"{node} held {held} entries on nvme before"] if held else []


def _at_least(what: str, moved: int, wanted: int) -> list[str]:
    return [] if moved >= wanted else [f"{what} {moved} B, {wanted} B at least are expected"]


def _cached_bytes(expected: Expected, seen: Seen) -> int:
    return seen.cached_tokens * expected.kv_token_bytes


_RULES: Mapping[Case, Callable[[Expected, Seen], list[str]]] = {
    "cold": _cold,
    "dram": _dram,
    "colocated": _colocated,
    "second_turn": _second_turn,
    "nvme": _nvme,
    "remote": _remote,
    "split": _split,
}
