"""What is to be generated, and how long that may take."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ..cluster.models import ModelKey
from ..tokenising import Tokenised
from ..upstream import GenerationBody


class Delivery(enum.Enum):
    """When the client sees what is generated."""

    STREAM = "token by token"
    WHOLE = "all at once, at the end"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated, and for whom."""

    request_id: str
    model: ModelKey
    prompt: Tokenised
    body: GenerationBody
    delivery: Delivery
    arrived_at: float  # monotonic
    worker: str | None = None  # the one the client insists on

    def body_after(self, output: Sequence[int]) -> GenerationBody:
        """What a worker is asked that goes on after `output`."""
        if not output:
            return self.body
        return msgspec.structs.replace(
            self.body, prompt=[*self.body.prompt, *output], resume_tokens=len(output)
        )


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest waits for progress, see `Patience`, and for all of a request."""

    first_token_seconds: float
    token_seconds: float
    request_seconds: float
