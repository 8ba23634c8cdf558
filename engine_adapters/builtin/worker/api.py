"""Bodies of the worker's HTTP interface, in OpenAI's shape with Moontide's evidence beside it."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from moontide.kvstore import Group

from ..model import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, Sampling

DEFAULT_MAX_TOKENS = 16

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
FinishReason = Literal["stop", "length"]
NotSupported = Annotated[None, Meta(description="Not supported: leave it out")]


class StreamOptions(Struct, frozen=True):
    """A stream always ends with a chunk that carries the usage."""

    include_usage: bool = True


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """`POST /v1/completions`. Unknown fields are ignored, as OpenAI does."""

    prompt: Annotated[str | list[TokenId], Meta(description="Text, or token ids")]
    model: Annotated[str | None, Meta(description="Refused when it is not this worker's")] = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2, description="0 is greedy")] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, description="-1 or 0: all")] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    ignore_eos: bool = False
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=1)] | None = None
    logprobs: NotSupported = None
    suffix: NotSupported = None

    def sampling(self) -> Sampling:
        """Raises InvalidRequest. Without a seed one is drawn."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(0, self.top_k or 0),
            seed=secrets.randbits(63) if self.seed is None else self.seed,
            max_tokens=self.max_tokens or DEFAULT_MAX_TOKENS,
            stop=stop,
            ignore_eos=self.ignore_eos,
        )


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CachedTokens(Struct, frozen=True):
    hbm: int
    dram: int


class Evidence(Struct, frozen=True, kw_only=True):
    """Where the prompt's KV came from. Times are unix seconds; null: nothing was loaded."""

    cached_by_tier: CachedTokens
    bytes_by_tier: dict[str, int]
    bytes_by_transport: dict[str, int]
    first_layer_at: float | None
    last_layer_at: float | None
    prefill_end_at: float | None
    recomputed: bool


class Choice(Struct, frozen=True, kw_only=True):
    text: str
    finish_reason: FinishReason | None
    index: int = 0
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The whole answer, or one chunk of a stream; usage and evidence come with the last chunk."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType = UNSET
    moontide: Evidence | UnsetType = UNSET


class NamespaceFields(Struct, frozen=True, kw_only=True):
    weights_id: str
    tokenizer_digest: str
    block_tokens: int
    rope_scaling: str
    adapter_digest: str
    salt: str


class ModelDocument(Struct, frozen=True, kw_only=True):
    """All that others need to render, tokenise and key a prompt as this worker does."""

    model: str
    tokenizer: str  # tokenizer.json
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    digest: str  # of the tokenizer, hex
    context_tokens: int
    block_tokens: int
    namespace: str  # digest, hex
    namespace_fields: NamespaceFields
    layout: list[Group]


class Cleared(Struct, frozen=True):
    blocks: int
