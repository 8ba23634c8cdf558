"""From sampled tokens to what a caller sees: text pieces, and why the sequence ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from ..model import Detokenizer, Sampling, StopMatcher
from .sequence import FinishReason, Reuse


@dataclass(frozen=True, slots=True)
class Reserved:
    """A hand-off's pages are reserved here: its prompt may be computed elsewhere now."""


@dataclass(frozen=True, slots=True)
class Output:
    """One step's news of one request. `finish` on the last one, which also carries `reuse`;
    `message` says what went wrong when that is "error"."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    reuse: Reuse | None = None
    message: str = ""


Sink = Callable[[Output | Reserved], None]
"""Called in the engine thread; must not block or raise."""

Piece = tuple[str, FinishReason | None]
"""The text that may be shown now, and why this token is the last one, if it is."""


class OutputText:
    """Detokenises one sequence's output and decides when it ends. An end-of-sequence token counts
    as a token and shows no text; a stop string is cut off. What is cut and shown does not depend on
    which tokens were `resume`d: a caller sees one text, whoever produced its parts."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._sampling = sampling
        self._ends = () if sampling.ignore_eos else eos_token_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._stop = StopMatcher(sampling.stop)
        self._num_tokens = 0

    def push(self, token_id: int) -> Piece:
        """A token that may be the last."""
        text, finish = self.push_open(token_id)
        if finish is not None or self._num_tokens < self._sampling.max_tokens:
            return text, finish
        return self._cut_off(text)

    def push_open(self, token_id: int) -> Piece:
        """As `push`, for a token after which others go on: only a token that ends the answer
        itself is its last, and text that is not certain yet is left to them."""
        self._num_tokens += 1
        if token_id in self._ends:
            return self._rest(""), "stop"
        text = self._stop.push(self._detokenizer.push(token_id))
        return text, None if self._stop.matched is None else "stop"

    def resume(self, token_ids: Iterable[int]) -> Piece:
        """Takes in output that the caller has, with its certain text. When that was all of the
        answer, returns what is left to say."""
        for token_id in token_ids:
            _, finish = self.push_open(token_id)
            if finish is not None:
                return "", finish
        if self._num_tokens < self._sampling.max_tokens:
            return "", None
        return self._cut_off("")

    def _cut_off(self, text: str) -> Piece:
        text = self._rest(text)
        return text, "length" if self._stop.matched is None else "stop"

    def _rest(self, text: str) -> str:
        text += self._stop.push(self._detokenizer.flush())
        return text + self._stop.flush()
