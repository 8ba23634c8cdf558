"""The OpenAI-shaped bodies this front end takes and gives.

Unknown fields are ignored, as OpenAI does. A field that exists there and would change the answer,
but is not implemented here, is declared `Neutral`: other values than its neutral ones are refused
by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MAX_STOPS = 16

Neutral = Annotated[
    Any, msgspec.Meta(description="Not implemented: anything but its neutral value is refused")
]
MaxTokens = Annotated[int, msgspec.Meta(ge=1, description="Most tokens to generate")]
Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0, description="0 is greedy")]
TopP = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
TopK = Annotated[int, msgspec.Meta(ge=-1, description="-1 or 0: all")]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
StopString = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Stops = StopString | Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOPS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

CompletionPrompt = Annotated[
    str | list[str | TokenId | list[TokenId]],
    msgspec.Meta(description="Text, token ids, or a list of one of these"),
]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request have in common."""

    model: Annotated[str, msgspec.Meta(max_length=256)]
    max_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: Annotated[
        bool, msgspec.Meta(description="Extension: give token ids beside the text")
    ] = False
    ignore_eos: Annotated[
        bool, msgspec.Meta(description="Extension: generate max_tokens tokens, whatever they are")
    ] = False
    n: Neutral = None
    logprobs: Neutral = None
    logit_bias: Neutral = None
    frequency_penalty: Neutral = None
    presence_penalty: Neutral = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: CompletionPrompt
    best_of: Neutral = None
    echo: Neutral = None
    suffix: Neutral = None


class ContentPart(msgspec.Struct, frozen=True):
    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]
    name: str | None = None
    tool_calls: Neutral = None
    function_call: Neutral = None
    audio: Neutral = None

    def text(self) -> str:
        """Text parts are joined by a line break, as vLLM does for templates that take text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


Messages = Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: MaxTokens | None = None
    response_format: Neutral = None
    tools: Neutral = None
    tool_choice: Neutral = None
    functions: Neutral = None
    function_call: Neutral = None
    top_logprobs: Neutral = None
    modalities: Neutral = None
    audio: Neutral = None
    prediction: Neutral = None
    web_search_options: Neutral = None


NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "tool_calls": ([],),
    "top_logprobs": (0,),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
"""What a `Neutral` field may hold beside null: it then changes nothing."""


# -- answers ----------------------------------------------------------------------


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0  # what the worker really reused


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()


FinishReason = Literal["stop", "length"]


class CompletionChoice(msgspec.Struct, frozen=True):
    text: str
    finish_reason: FinishReason | None
    index: int = 0
    logprobs: None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    moontide: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # the worker's evidence, as it came


class AssistantMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    message: AssistantMessage
    finish_reason: FinishReason | None
    index: int = 0
    logprobs: None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    moontide: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    moontide: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "moontide"
    max_model_len: int  # prompt and answer together, in tokens


class ModelList(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"
