"""From token ids to text while they come."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer


class Detokenizer:
    """Streaming decoder of one sequence's output. The concatenation of everything `push` and
    `flush` return equals decoding all tokens at once (special tokens left out); no piece ends in
    a partial UTF-8 sequence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        raise NotImplementedError

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        raise NotImplementedError

    def flush(self) -> str:
        """What is left at the end of the sequence; incomplete bytes become U+FFFD."""
        raise NotImplementedError


class StopMatcher:
    """Cuts text at the first stop string and holds back a tail that may become one."""

    matched: str | None = None
    """The stop string that ended the text, once found; later pushes return nothing."""

    def __init__(self, stop: Sequence[str]) -> None:
        raise NotImplementedError

    def push(self, text: str) -> str:
        """The part of the text so far, not yet returned, that no stop string can take back."""
        raise NotImplementedError

    def flush(self) -> str:
        """What was held back, at the end of the sequence; empty after a match."""
        raise NotImplementedError
