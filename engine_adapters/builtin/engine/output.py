"""From sampled tokens to what a caller sees: text pieces, and why the sequence ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from ..model import Detokenizer, Sampling, StopMatcher
from .sequence import FinishReason, Reuse


@dataclass(frozen=True, slots=True)
class Output:
    """One step's news of one request. `finish` on the last one, which also carries `reuse`;
    `message` says what went wrong when that is "error"."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    reuse: Reuse | None = None
    message: str = ""


Sink = Callable[[Output], None]
"""Called in the engine thread; must not block or raise."""


class OutputText:
    """Detokenises one sequence's output and decides when it ends. An end-of-sequence token counts
    as a token and shows no text; a stop string is cut off."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._sampling = sampling
        self._ends = () if sampling.ignore_eos else eos_token_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._stop = StopMatcher(sampling.stop)
        self._num_tokens = 0

    def push(self, token_id: int) -> tuple[str, FinishReason | None]:
        """The text that may be shown now, and why this token is the last one, if it is."""
        self._num_tokens += 1
        if token_id in self._ends:
            return self._rest(""), "stop"
        text = self._stop.push(self._detokenizer.push(token_id))
        if self._stop.matched is not None:
            return text, "stop"
        if self._num_tokens < self._sampling.max_tokens:
            return text, None
        text = self._rest(text)
        return text, "length" if self._stop.matched is None else "stop"

    def _rest(self, text: str) -> str:
        text += self._stop.push(self._detokenizer.flush())
        return text + self._stop.flush()
