"""What goes to a worker's `POST /v1/completions`, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..protocol import Usage
from .failures import ErrorDetail


class RemoteDecode(msgspec.Struct, frozen=True, kw_only=True):
    """To the prefill side of a hand-off: compute the prompt, keep its last partial block under this
    id, sample token 1."""

    handoff_id: str  # 32 hex digits
    do_remote_decode: Literal[True] = True


class RemotePrefill(msgspec.Struct, frozen=True, kw_only=True):
    """To the decode side: reserve, fetch the prompt's KV from `store_instance`, wait for token
    1."""

    handoff_id: str
    store_instance: str
    do_remote_prefill: Literal[True] = True


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last `resume_tokens` ids of `prompt` are output that the client already has; `max_tokens`
    counts them."""

    prompt: list[int]
    model: str
    max_tokens: int
    stream: bool
    stream_options: dict[str, bool]
    return_token_ids: bool
    seed: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False
    resume_tokens: int = 0
    kv_transfer_params: RemoteDecode | RemotePrefill | None = None


class FirstToken(msgspec.Struct, frozen=True):
    """`POST /v1/handoffs/{handoff_id}/first_token`"""

    token_id: int


class ChunkChoice(msgspec.Struct, frozen=True):
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class HandoffNews(msgspec.Struct, frozen=True):
    state: str = ""  # "reserved": the decode side has room for the request


class Chunk(msgspec.Struct, frozen=True):
    """One event of a worker's stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    moontide: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    kv_transfer_params: HandoffNews | None = None
    error: ErrorDetail | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.token_ids or ()) for choice in self.choices)
