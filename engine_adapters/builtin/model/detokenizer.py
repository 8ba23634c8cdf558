"""From token ids to text while they come."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer, decoders

from ..errors import ModelError


class Detokenizer:
    """Streaming decoder of one sequence's output, special tokens left out. No piece ends in a
    partial UTF-8 sequence; bytes that never become UTF-8 come out as U+FFFD. The text continues
    the prompt, so a leading space stays (SentencePiece's own decoder strips it)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = _token_decoder(tokenizer)
        self._special = {
            token_id
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty. Ids the tokenizer does not
        know (a padded vocabulary) have no text."""
        if token_id in self._special:
            return ""
        token = self._tokenizer.id_to_token(token_id)
        return "" if token is None else self._utf8.decode(self._token_bytes(token))

    def flush(self) -> str:
        """What is left at the end of the sequence."""
        return self._utf8.decode(b"", final=True)


class StopMatcher:
    """Cuts text before the stop string that is complete first, and holds back a tail that may
    become one. What is returned does not depend on how the text was split into pushes."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stop = stop
        self._held = ""

    def push(self, text: str) -> str:
        """The text not yet returned that no stop string can take back; empty after a match."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := text.find(stop)) >= 0
        ]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        keep = len(text) - self._undecided(text)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held back, at the end of the sequence; empty after a match."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest tail of `text` that begins a stop string."""
        return max(
            (
                length
                for stop in self._stop
                for length in range(1, min(len(stop), len(text) + 1))
                if text.endswith(stop[:length])
            ),
            default=0,
        )


def _token_decoder(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """How this tokenizer's tokens become bytes. Raises ModelError for an unknown decoder."""
    if isinstance(tokenizer.decoder, decoders.ByteLevel):
        return _byte_level
    state = "null" if tokenizer.decoder is None else tokenizer.decoder.__getstate__()
    described = json.loads(state) or {}
    steps = {step["type"] for step in described.get("decoders", [described]) if "type" in step}
    if "ByteLevel" in steps:
        return _byte_level
    if steps & {"ByteFallback", "Metaspace"}:
        return _sentencepiece
    raise ModelError(
        f"the tokenizer's decoder {described.get('type')!r} is not supported; supported: "
        "ByteLevel, ByteFallback, Metaspace"
    )


def _byte_level(token: str) -> bytes:
    """A token that is no sequence of byte characters (an added one) stands for itself."""
    try:
        return bytes(_BYTES_BY_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


def _bytes_by_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes as themselves, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return table


_BYTES_BY_CHARACTER = _bytes_by_character()
