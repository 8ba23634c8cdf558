"""How few tokens a text can have, from its size alone: an oversized prompt is refused before it is
tokenised, which takes seconds.

Exact for byte-level BPE without a normalizer, where each token stands for at most as many bytes as
its name has letters. Other tokenizers may shrink or drop text: for them nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from tokenizers import pre_tokenizers


class _Part(msgspec.Struct, frozen=True):
    type: str = ""
    pretokenizers: list[_Part] = []


class _AddedToken(msgspec.Struct, frozen=True):
    content: str
    lstrip: bool = False  # takes white space of any length with it
    rstrip: bool = False


class _Bpe(msgspec.Struct, frozen=True):
    type: str
    vocab: dict[str, int] = {}


class _Tokenizer(msgspec.Struct, frozen=True):
    """The part of a tokenizer.json that matters here."""

    model: _Bpe
    added_tokens: list[_AddedToken] = []
    normalizer: msgspec.Raw = msgspec.Raw(b"null")
    truncation: msgspec.Raw = msgspec.Raw(b"null")
    pre_tokenizer: _Part | None = None


@dataclass(frozen=True, slots=True)
class TokenBound:
    longest_token_bytes: int
    dropped: bytes  # byte values the vocabulary lacks: the model drops them

    def fewest(self, text: str) -> int:
        """A number of tokens that `text` has at least."""
        kept = len(text.encode().translate(None, delete=self.dropped))
        return -(-kept // self.longest_token_bytes)


def token_bound(tokenizer_json: str) -> TokenBound | None:
    """None where the size of a text bounds nothing."""
    try:
        tokenizer = msgspec.json.decode(tokenizer_json, type=_Tokenizer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not _keeps_every_byte(tokenizer):
        return None
    letters = _letters()
    lengths = [len(name) for name in tokenizer.model.vocab]
    lengths += [len(added.content.encode()) for added in tokenizer.added_tokens]
    dropped = bytes(byte for byte in range(256) if letters[byte] not in tokenizer.model.vocab)
    return TokenBound(max(lengths, default=1), dropped)


def _keeps_every_byte(tokenizer: _Tokenizer) -> bool:
    part = tokenizer.pre_tokenizer
    parts = [] if part is None else (part.pretokenizers or [part])
    kinds = {part.type for part in parts}
    return (
        tokenizer.model.type == "BPE"
        and "ByteLevel" in kinds
        and kinds <= {"ByteLevel", "Digits"}
        and bytes(tokenizer.normalizer) == b"null"
        and bytes(tokenizer.truncation) == b"null"
        and not any(added.lstrip or added.rstrip for added in tokenizer.added_tokens)
    )


def _letters() -> list[str]:
    """The letter that stands for each byte value in names of byte-level tokens: printable ones for
    themselves, the others for letters from U+0100 on, as in GPT-2."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    spare = iter(range(256, 512))
    return [chr(b) if chr(b) in alphabet else chr(next(spare)) for b in range(256)]
