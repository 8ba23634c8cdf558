"""Asks, and keeps a row of what came of it."""

from __future__ import annotations

from collections.abc import Callable

from .checks import Expected, Seen, faults, tier_of
from .client import Reply, chat
from .prompts import Message
from .report import Case, Row, RowEvidence
from .services import Services, traffic

Say = Callable[[str], None]


class Recorder:
    """`rows` grow as it goes. `services` are replaced when the workers are."""

    def __init__(self, services: Services, say: Say) -> None:
        self.services = services
        self.rows: list[Row] = []
        self.say = say

    def ask(self, messages: list[Message], *, max_tokens: int, worker: str | None = None) -> Seen:
        """One request, with every store's counters around it."""
        services = self.services
        before = services.stats()
        reply = chat(
            services.plan.conductor.url,
            services.model,
            messages,
            max_tokens=max_tokens,
            worker=worker,
        )
        services.settle()
        after = services.stats()
        return Seen(reply, {node: traffic(before[node], after[node]) for node in before})

    def forget_everything(self) -> None:
        """No worker and no store holds anything then."""
        self.services.settle()
        self.services.empty_engine_caches()
        self.services.empty_stores()

    def add(
        self,
        case: Case,
        question: str,
        seen: Seen,
        *,
        reference: Reply,
        worker: str,
        source: str,
        at_least: int = 0,
    ) -> None:
        """Judge what was seen, and keep it. `worker` should have served it; `source`: the node the
        KV should come from."""
        expected = Expected(
            case=case,
            reference=reference,
            at_least=at_least,
            kv_token_bytes=self.services.kv_token_bytes,
            worker=worker,
            node=self.services.node_of(worker),
            source=source,
        )
        row = _row(case, question, seen, reference, faults(expected, seen))
        self.rows.append(row)
        self.say(
            f"{case}: {row.cached_tokens} of {row.prompt_tokens} tokens cached, first token after "
            f"{row.ttft_seconds * 1000:.0f} ms"
            + (f"; WRONG: {'; '.join(row.wrong)}" if row.wrong else "")
        )


def _row(case: Case, question: str, seen: Seen, reference: Reply, wrong: list[str]) -> Row:
    reply = seen.reply
    evidence = RowEvidence(
        bytes_by_tier=reply.evidence.bytes_by_tier,
        bytes_by_transport=reply.evidence.bytes_by_transport,
        first_layer_at=reply.evidence.first_layer_at,
        last_layer_at=reply.evidence.last_layer_at,
        prefill_end_at=reply.evidence.prefill_end_at,
        worker=reply.worker,
        stores=dict(seen.stores),
    )
    return Row(
        case=case,
        question=question,
        prompt_tokens=reply.usage.prompt_tokens,
        cached_tokens=seen.cached_tokens,
        tier=tier_of(reply),
        ttft_seconds=reply.ttft_seconds,
        speedup=reference.ttft_seconds / reply.ttft_seconds,
        tokens_per_second=reply.tokens_per_second,
        text_equal=reply.text == reference.text,
        evidence=evidence,
        wrong=tuple(wrong),
    )
