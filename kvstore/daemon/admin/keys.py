"""Keys as text: `kv:HEX` (16 bytes of block key) and `s:PERCENT-ENCODED` string keys."""

from __future__ import annotations

import binascii
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from ...errors import InvalidRequest
from ...keys import BLOCK_KEY_BYTES, MAX_STRING_KEY_BYTES, EntryId, block_key_of, is_block

NAMESPACE_BYTES = 32


class TextKey(NamedTuple):
    """A parsed key or key prefix."""

    is_block: bool
    data: bytes

    @property
    def entry_id(self) -> bytes:
        """As eviction and explain take it; of a block without its shard: all of them."""
        return (b"k" if self.is_block else b"s") + self.data


def key_of(entry: EntryId) -> TextKey:
    return TextKey(is_block(entry), block_key_of(entry) if is_block(entry) else entry[1:])


def parse_key(text: str) -> TextKey:
    """Raises InvalidRequest on anything but a whole key."""
    key = parse_key_prefix(text)
    if key.is_block and len(key.data) != BLOCK_KEY_BYTES:
        raise InvalidRequest(
            f"key {text[:80]!r} has {len(key.data)} bytes; a block key has {BLOCK_KEY_BYTES}"
        )
    if not key.data:
        raise InvalidRequest(f"key {text!r} is empty")
    return key


def parse_path_key(raw: str) -> TextKey:
    """A key as the rest of a URL's path, which nobody has decoded yet: as the listing shows it, or
    percent-encoded once more as a whole, its colon too. Raises InvalidRequest."""
    return parse_key(raw if ":" in raw else unquote(raw))


def parse_key_prefix(text: str) -> TextKey:
    """Raises InvalidRequest on a prefix that no key can have."""
    kind, separator, rest = text.partition(":")
    if not separator or kind not in ("kv", "s"):
        raise InvalidRequest(f"key {text[:80]!r}: write kv:HEX or s:PERCENT-ENCODED")
    data = _from_hex("key", text, rest) if kind == "kv" else unquote_to_bytes(rest)
    bound = BLOCK_KEY_BYTES if kind == "kv" else MAX_STRING_KEY_BYTES
    if len(data) > bound:
        raise InvalidRequest(f"key {text[:80]!r} has {len(data)} bytes; at most {bound}")
    return TextKey(kind == "kv", data)


def parse_namespace(text: str | None) -> bytes | None:
    """64 hex digits; the empty text selects string entries; None everything."""
    if not text:
        return None if text is None else b""
    digest = _from_hex("namespace", text, text)
    if len(digest) != NAMESPACE_BYTES:
        raise InvalidRequest(
            f"namespace {text[:80]!r} has {len(digest)} bytes; its digest has "
            f"{NAMESPACE_BYTES}, in hex"
        )
    return digest


def _from_hex(what: str, text: str, digits: str) -> bytes:
    try:
        return binascii.unhexlify(digits)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{what} {text[:80]!r} is not hex digits in pairs") from error
