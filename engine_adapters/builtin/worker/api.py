"""Bodies of the worker's HTTP interface, in OpenAI's shape with Moontide's evidence beside it."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from moontide.kvstore import BlockKey, Group, Instance

from ..engine.sequence import Handoff, ReceiveHandoff, SendHandoff
from ..errors import InvalidRequest
from ..model import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, Sampling

DEFAULT_MAX_TOKENS = 16

TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
FinishReason = Literal["stop", "length"]
NotSupported = Annotated[None, Meta(description="Not supported: leave it out")]
HandoffId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class StreamOptions(Struct, frozen=True):
    """A stream always ends with a chunk that carries the usage."""

    include_usage: bool = True


class HandoffRequest(Struct, frozen=True, kw_only=True):
    """This worker's part in a hand-off, in the shape of vLLM's `kv_transfer_params`. Prefill
    (`do_remote_decode`): the answer is token 1, and says which store has the KV. Decode
    (`do_remote_prefill`): the stream says when pages are reserved; it goes on after token 1, which
    `POST /v1/handoffs/{handoff_id}/first_token` tells."""

    handoff_id: Annotated[HandoffId, Meta(description="Random, for this request only")]
    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    store_instance: Annotated[str, Meta(description="Of the prefill worker's store")] = ""

    def handoff(self) -> Handoff:
        """Raises InvalidRequest."""
        key = BlockKey(bytes.fromhex(self.handoff_id))
        if self.do_remote_decode == self.do_remote_prefill:
            raise InvalidRequest(
                f"kv_transfer_params has do_remote_decode={self.do_remote_decode} and "
                f"do_remote_prefill={self.do_remote_prefill}; exactly one must be true"
            )
        if self.do_remote_decode:
            return SendHandoff(key)
        try:
            return ReceiveHandoff(key, str(Instance.parse(self.store_instance)))
        except ValueError as error:
            raise InvalidRequest(
                f"store_instance is {self.store_instance[:200]!r}; give the instance of a store "
                "(node/process/id), as its workers' records have it"
            ) from error


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
    resume_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="So many ids at the end of the prompt are output that the caller has",
        ),
    ] = 0
    kv_transfer_params: HandoffRequest | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=1)] | None = None
    logprobs: NotSupported = None
    suffix: NotSupported = None

    def handoff(self) -> Handoff | None:
        """Raises InvalidRequest."""
        if self.kv_transfer_params is None:
            return None
        if self.kv_transfer_params.do_remote_prefill and not self.stream:
            raise InvalidRequest("do_remote_prefill needs stream=true: the stream says when")
        return self.kv_transfer_params.handoff()

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
    nvme: int


class Evidence(Struct, frozen=True, kw_only=True):
    """Where the prompt's KV came from: tokens and loaded bytes by the tier they lay in, and by the
    way to this node's DRAM (shm: they lay there). Times are unix seconds, null: nothing was loaded;
    of a load, when its first and its last layer were in the engine's pages."""

    cached_by_tier: CachedTokens
    bytes_by_tier: dict[str, int]
    bytes_by_transport: dict[str, int]
    first_layer_at: float | None
    last_layer_at: float | None
    prefill_end_at: float | None
    recomputed: bool


class HandoffReply(Struct, frozen=True, kw_only=True):
    """From a decode worker `state`; from a prefill worker the other two, in the last chunk."""

    state: Literal["reserved"] | UnsetType = UNSET
    handoff_id: str | UnsetType = UNSET
    store_instance: str | UnsetType = UNSET  # empty: the KV was not stored


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
    kv_transfer_params: HandoffReply | UnsetType = UNSET


class FirstToken(Struct, frozen=True):
    """Token 1 of a hand-off, as the prefill worker sampled it."""

    token_id: TokenId


class Taken(Struct, frozen=True):
    """Token 1 was taken, now or before."""


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
    context_tokens: int  # prompt and output together: the model's, or what the pool holds
    block_tokens: int
    namespace: str  # digest, hex
    namespace_fields: NamespaceFields
    layout: list[Group]


class Cleared(Struct, frozen=True):
    blocks: int
