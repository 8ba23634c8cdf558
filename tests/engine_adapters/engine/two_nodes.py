"""Two engines on two real stores of one cluster, and hand-offs between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from moontide.engine_adapters.builtin.engine.sequence import ReceiveHandoff, SendHandoff
from moontide.kvstore import BlockKey

from ...store_process import StoreProcess
from .conftest import Answer, Bench, Running

RESERVE_SECONDS = 10.0


@dataclass
class HandedOver:
    """What came of one hand-off: `tokens` of both workers together."""

    prefill: Answer
    decode: Answer

    @property
    def tokens(self) -> list[int]:
        return self.prefill.token_ids + self.decode.token_ids

    @property
    def text(self) -> str:
        return self.prefill.text + self.decode.text


@dataclass
class TwoNodes:
    """`prefill` stores at `source`; `decode` has a store of its own."""

    prefill: Bench
    decode: Bench
    source: StoreProcess
    key: BlockKey = field(default_factory=lambda: BlockKey(secrets.token_bytes(16)))

    def hand_over(self, prompt: Sequence[int], max_tokens: int = 6, **sampling: Any) -> HandedOver:
        receiver = self.receive(prompt, max_tokens, **sampling)
        assert receiver.reserved.wait(RESERVE_SECONDS)
        first = self.compute(prompt, max_tokens, **sampling).result()
        self.decode.engine.give_first_token(receiver.id, first.token_ids[-1])
        return HandedOver(first, receiver.result())

    def receive(self, prompt: Sequence[int], max_tokens: int = 6, **sampling: Any) -> Running:
        """At the decode worker."""
        self.key = BlockKey(secrets.token_bytes(16))
        handoff = ReceiveHandoff(self.key, self.source.instance)
        return self.decode.start(prompt, max_tokens, handoff=handoff, **sampling)

    def compute(self, prompt: Sequence[int], max_tokens: int = 6, **sampling: Any) -> Running:
        """At the prefill worker, for the receiver made last."""
        return self.prefill.start(prompt, max_tokens, handoff=SendHandoff(self.key), **sampling)

    def settle(self) -> None:
        self.prefill.settle()
        self.decode.settle()


MakeNodes = Callable[..., TwoNodes]
