"""The demo's requests, in order: each question cold, from DRAM, from the engine's own blocks, and
then one turn further."""

from __future__ import annotations

from collections.abc import Callable

from .checks import StoreTraffic, faults, full_blocks, tier_of
from .client import Reply, chat
from .prompts import Message, check_border, first_turn, second_turn
from .report import Case, Row, RowEvidence
from .services import Services

_ANSWER_TOKENS = 64  # enough to fill a block: the second turn shows that answers are kept too
_SECOND_ANSWER_TOKENS = 24

Say = Callable[[str], None]


class Scenario:
    """Runs one question after the other; `rows` grow as it goes."""

    def __init__(self, conductor_url: str, services: Services, say: Say) -> None:
        self.rows: list[Row] = []
        self._url = conductor_url
        self._services = services
        self._say = say

    def warm_up(self) -> None:
        """One short answer, so that no row pays for first-time work."""
        self._say("waiting for a first short answer, which warms everything up")
        chat(self._url, self._services.model, [Message("user", "Hello")], max_tokens=4)

    def run(self, question: str) -> None:
        """All rows of one question. The second turn is run last without any cache as well, as the
        reference of its text and time."""
        services = self._services
        self._forget_everything()
        self._say(f"waiting for a cold prefill: {question}")
        first = first_turn(question)
        cold, cold_evidence = self._ask(first)
        check_border(cold.usage.prompt_tokens)
        self._add("cold", question, cold, cold, cold_evidence, at_least=0)
        cached = full_blocks(cold.usage.prompt_tokens)

        services.empty_engine_cache()
        self._say("waiting for the same prompt, its KV from DRAM")
        reply, evidence = self._ask(first)
        self._add("dram", question, reply, cold, evidence, at_least=cached)

        self._say("waiting for the same prompt, its KV in the engine")
        reply, evidence = self._ask(first)
        self._add("colocated", question, reply, cold, evidence, at_least=cached)

        tokens_before = cold.usage.prompt_tokens + cold.usage.completion_tokens
        second = second_turn(first, cold.text, tokens_before=tokens_before)
        self._say("waiting for the second turn")
        reply, evidence = self._ask(second, _SECOND_ANSWER_TOKENS)
        check_border(reply.usage.prompt_tokens)
        self._forget_everything()
        self._say("waiting for the second turn once more, cold, to compare")
        reference, _ = self._ask(second, _SECOND_ANSWER_TOKENS)
        self._add(
            "second_turn",
            question,
            reply,
            reference,
            evidence,
            at_least=tokens_before - services.block_tokens,
        )

    def _ask(
        self, messages: list[Message], max_tokens: int = _ANSWER_TOKENS
    ) -> tuple[Reply, RowEvidence]:
        """One request, with the store's counters around it."""
        before = self._services.dram()
        reply = chat(self._url, self._services.model, messages, max_tokens=max_tokens)
        self._services.settle()
        after = self._services.dram()
        evidence = RowEvidence(
            bytes_by_tier=reply.evidence.bytes_by_tier,
            bytes_by_transport=reply.evidence.bytes_by_transport,
            first_layer_at=reply.evidence.first_layer_at,
            last_layer_at=reply.evidence.last_layer_at,
            prefill_end_at=reply.evidence.prefill_end_at,
            store_bytes_out=after.bytes_out - before.bytes_out,
            store_bytes_in=after.bytes_in - before.bytes_in,
        )
        return reply, evidence

    def _forget_everything(self) -> None:
        self._services.empty_engine_cache()
        self._services.empty_store()

    def _add(
        self,
        case: Case,
        question: str,
        reply: Reply,
        reference: Reply,
        evidence: RowEvidence,
        *,
        at_least: int,
    ) -> None:
        wrong = faults(
            case,
            reply,
            reference=reference,
            at_least=at_least,
            kv_token_bytes=self._services.kv_token_bytes,
            store=StoreTraffic(evidence.store_bytes_in, evidence.store_bytes_out),
        )
        row = Row(
            case=case,
            question=question,
            prompt_tokens=reply.usage.prompt_tokens,
            cached_tokens=reply.usage.prompt_tokens_details.cached_tokens,
            tier=tier_of(reply),
            ttft_seconds=reply.ttft_seconds,
            speedup=reference.ttft_seconds / reply.ttft_seconds,
            tokens_per_second=reply.tokens_per_second,
            text_equal=reply.text == reference.text,
            evidence=evidence,
            wrong=tuple(wrong),
        )
        self.rows.append(row)
        self._say(
            f"{case}: {row.cached_tokens} of {row.prompt_tokens} tokens cached, first token after "
            f"{row.ttft_seconds * 1000:.0f} ms" + (f"; WRONG: {'; '.join(wrong)}" if wrong else "")
        )
