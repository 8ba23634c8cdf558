"""A worker's chunks in OpenAI's shapes: chunk by chunk for a stream, or gathered for a plain
answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .errors import WorkerFailed
from .protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Delta,
    FinishReason,
    Usage,
)
from .upstream import Chunk, ChunkChoice

TokenIdList = list[int] | msgspec.UnsetType
Evidence = msgspec.Raw | msgspec.UnsetType


@dataclass(slots=True)
class Gathered:
    """A whole answer, from its chunks."""

    text: str = ""
    token_ids: TokenIdList = msgspec.UNSET
    finish_reason: FinishReason | None = None


class Replies(Protocol):
    """Writes one answer in one of the two shapes."""

    def chunk(self, choice: ChunkChoice) -> Iterator[msgspec.Struct]: ...
    def end(self, usage: Usage, evidence: Evidence) -> Iterator[msgspec.Struct]: ...
    def whole(self, gathered: Gathered, usage: Usage, evidence: Evidence) -> msgspec.Struct: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What every part of one answer has in common."""

    id: str
    model: str
    created: int
    includes_usage: bool
    gives_token_ids: bool

    def token_ids(self, choice: ChunkChoice) -> TokenIdList:
        return (choice.token_ids or []) if self.gives_token_ids else msgspec.UNSET

    @property
    def chunk_usage(self) -> msgspec.UnsetType | None:
        """OpenAI writes `"usage": null` in every chunk but the last when a usage was asked for."""
        return None if self.includes_usage else msgspec.UNSET


class CompletionReplies:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def chunk(self, choice: ChunkChoice) -> Iterator[Completion]:
        shape = self._shape
        reason = finish_reason(choice)
        yield self._completion(
            [CompletionChoice(choice.text, reason, token_ids=shape.token_ids(choice))],
            shape.chunk_usage,
        )

    def end(self, usage: Usage, evidence: Evidence) -> Iterator[Completion]:
        if self._shape.includes_usage:
            yield self._completion([], usage, evidence)

    def whole(self, gathered: Gathered, usage: Usage, evidence: Evidence) -> Completion:
        choice = CompletionChoice(
            gathered.text, gathered.finish_reason, token_ids=gathered.token_ids
        )
        return self._completion([choice], usage, evidence)

    def _completion(
        self,
        choices: list[CompletionChoice],
        usage: Usage | msgspec.UnsetType | None,
        evidence: Evidence = msgspec.UNSET,
    ) -> Completion:
        shape = self._shape
        return Completion(
            id=shape.id,
            created=shape.created,
            model=shape.model,
            choices=choices,
            usage=usage,
            moontide=evidence,
        )


class ChatReplies:
    """The first chunk names the role, the one with the finish reason has an empty delta."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._begun = False

    def chunk(self, choice: ChunkChoice) -> Iterator[ChatChunk]:
        if not self._begun:
            self._begun = True
            yield self._chunk([ChatChunkChoice(Delta(role="assistant", content=""))])
        token_ids = self._shape.token_ids(choice)
        if choice.text or token_ids:
            delta = Delta(content=choice.text)
            yield self._chunk([ChatChunkChoice(delta, token_ids=token_ids)])
        reason = finish_reason(choice)
        if reason is not None:
            yield self._chunk([ChatChunkChoice(Delta(), finish_reason=reason)])

    def end(self, usage: Usage, evidence: Evidence) -> Iterator[ChatChunk]:
        if self._shape.includes_usage:
            yield self._chunk([], usage, evidence)

    def whole(self, gathered: Gathered, usage: Usage, evidence: Evidence) -> ChatCompletion:
        shape = self._shape
        choice = ChatChoice(
            AssistantMessage(gathered.text), gathered.finish_reason, token_ids=gathered.token_ids
        )
        return ChatCompletion(
            id=shape.id,
            created=shape.created,
            model=shape.model,
            choices=[choice],
            usage=usage,
            moontide=evidence,
        )

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | None = None,
        evidence: Evidence = msgspec.UNSET,
    ) -> ChatChunk:
        shape = self._shape
        return ChatChunk(
            id=shape.id,
            created=shape.created,
            model=shape.model,
            choices=choices,
            usage=usage or shape.chunk_usage,
            moontide=evidence,
        )


def gather(gathered: Gathered, chunk: Chunk, shape: Shape) -> None:
    """Appends `chunk`. Raises WorkerFailed when the worker gave the answer up in it."""
    for choice in chunk.choices:
        gathered.text += choice.text
        ids = shape.token_ids(choice)
        if not isinstance(ids, msgspec.UnsetType):
            before = gathered.token_ids
            gathered.token_ids = ids if isinstance(before, msgspec.UnsetType) else before + ids
        gathered.finish_reason = finish_reason(choice) or gathered.finish_reason


def finish_reason(choice: ChunkChoice) -> FinishReason | None:
    """Raises WorkerFailed when the worker gave the answer up."""
    match choice.finish_reason:
        case None:
            return None
        case "stop":
            return "stop"
        case "length":
            return "length"
    raise WorkerFailed(f"the worker ended its answer with {choice.finish_reason!r}")


def now_seconds() -> int:
    """`created` of an answer: wall clock, as OpenAI has it."""
    return int(time.time())
