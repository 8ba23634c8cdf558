"""What a caller is told of its request: all at once, or chunk by chunk."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import msgspec

from moontide.kvstore import Tier
from moontide.kvstore.service import DEFAULT_ERRORS, ServerEvent

from ..engine.output import Output, Reserved
from ..engine.sequence import Reuse
from ..errors import EngineError
from .api import (
    CachedTokens,
    Choice,
    Completion,
    CompletionRequest,
    Evidence,
    HandoffReply,
    PromptTokensDetails,
    Usage,
)
from .http_errors import http_error

_DONE = ServerEvent(b"[DONE]")

News = AsyncGenerator[Output | Reserved, None]
"""Until an output with `finish`. Raises EngineError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What every chunk of one answer has in common."""

    request: CompletionRequest
    model: str
    id: str
    created: int
    num_prompt: int
    num_given: int  # output tokens that the caller had before
    handoff: HandoffReply | None  # for the last chunk

    @property
    def tells_token_ids(self) -> bool:
        return self.request.return_token_ids or self.handoff is not None

    def chunk(self, output: Output) -> Completion:
        reason = output.finish if output.finish in ("stop", "length") else None
        choice = Choice(
            text=output.text,
            finish_reason=reason,
            token_ids=list(output.token_ids) if self.tells_token_ids else msgspec.UNSET,
        )
        return self._completion([choice])

    def reserved(self) -> Completion:
        """Says that the hand-off's pages are reserved."""
        return msgspec.structs.replace(
            self._completion([]), kv_transfer_params=HandoffReply(state="reserved")
        )

    def last(self, choices: list[Choice], num_output: int, reuse: Reuse) -> Completion:
        return msgspec.structs.replace(
            self._completion(choices),
            usage=_usage(self.num_prompt, self.num_given + num_output, reuse),
            moontide=_evidence(reuse),
            kv_transfer_params=self.handoff or msgspec.UNSET,
        )

    def _completion(self, choices: list[Choice]) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)


async def collect(answer: Answer, outputs: News) -> Completion:
    """Raises HttpError."""
    text: list[str] = []
    token_ids: list[int] = []
    last = Output("", ())
    try:
        async for output in outputs:
            if isinstance(output, Output):
                text.append(output.text)
                token_ids += output.token_ids
                last = output
    except EngineError as error:
        raise http_error(error) from error
    whole = Output("".join(text), tuple(token_ids), last.finish)
    return answer.last(answer.chunk(whole).choices, len(token_ids), last.reuse or Reuse())


async def events(answer: Answer, outputs: News) -> AsyncIterator[ServerEvent]:
    """What fails in the middle becomes the last event."""
    num_output = 0
    reuse: Reuse | None = None
    try:
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                if isinstance(output, Reserved):
                    yield _event(answer.reserved())
                    continue
                num_output += len(output.token_ids)
                reuse = output.reuse
                if output.text or output.finish or answer.tells_token_ids:
                    yield _event(answer.chunk(output))
    except EngineError as error:
        body = DEFAULT_ERRORS.render(http_error(error))
        yield ServerEvent(msgspec.json.encode(body))
        return
    yield _event(answer.last([], num_output, reuse or Reuse()))
    yield _DONE


def _event(chunk: Completion) -> ServerEvent:
    return ServerEvent(msgspec.json.encode(chunk))


def _usage(num_prompt: int, num_output: int, reuse: Reuse) -> Usage:
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(min(reuse.cached_tokens, num_prompt)),
    )


def _evidence(reuse: Reuse) -> Evidence:
    return Evidence(
        cached_by_tier=CachedTokens(
            hbm=reuse.hbm_tokens, dram=reuse.dram_tokens, nvme=reuse.nvme_tokens
        ),
        bytes_by_tier={tier: reuse.bytes_by_tier[tier] for tier in (Tier.DRAM, Tier.NVME)},
        bytes_by_transport={way: reuse.bytes_by_transport[way] for way in ("shm", "tcp", "file")},
        first_layer_at=reuse.first_layer_at,
        last_layer_at=reuse.last_layer_at,
        prefill_end_at=reuse.prefill_end_at,
        recomputed=reuse.recomputed,
    )
