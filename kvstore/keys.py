"""Block keys and entry ids: content only, equal on every rank, process and machine (ADR 0001).

block key = first 16 bytes of BLAKE3 over the fields (digest.py gives their encoding)
    text     "moontide.block.v1"
    raw      namespace digest
    raw      parent key, empty for the first block
    tokens   u32 LE each, tag 4
    integer  number of extra ids of this block
    each extra id, as text or raw
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NewType, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from .digest import TOKENS, digest, encode_field, field_prefix
from .errors import InvalidRequest
from .layout import SHARD_BYTES, KVLayout, Shard

BlockKey = NewType("BlockKey", bytes)
"""16 bytes."""
EntryId = NewType("EntryId", bytes)
"""b"s" + UTF-8 key of a string entry, or b"k" + block key + packed shard."""
ExtraId = str | bytes
Extra = Sequence[ExtraId | tuple[int, ExtraId]]
"""Ids of non-token content (image digests, …). A bare id belongs to the first block; `(position,
id)` to the block that holds token `position`. Every later key depends on it through the chain."""
TokenIds = Sequence[int] | NDArray[np.integer]

BLOCK_KEY_BYTES = 16
MAX_STRING_KEY_BYTES = 1024
MAX_BLOCK_TOKENS = 65536
_TEXTS = ("weights_id", "tokenizer_digest", "rope_scaling", "adapter_digest", "salt")


@dataclass(frozen=True)
class Namespace:
    """Everything besides tokens that decides what KV bytes mean. Differing in any field, two
    namespaces share no key.

    `weights_id` is a digest of what the weights are (an engine adapter computes it), never a
    model's name. `salt` separates tenants."""

    weights_id: str = field(kw_only=True)
    layout: KVLayout = field(kw_only=True)
    tokenizer_digest: str = field(kw_only=True)
    block_tokens: int = field(kw_only=True)
    rope_scaling: str = field(default="", kw_only=True)
    adapter_digest: str = field(default="", kw_only=True)
    salt: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str):
                raise InvalidRequest(f"{name} is {value!r:.40}; give text")
        if not self.weights_id:
            raise InvalidRequest(
                "weights_id is empty; give a digest of the model's weights (names are only labels)"
            )
        if not isinstance(self.block_tokens, int) or not 1 <= self.block_tokens <= MAX_BLOCK_TOKENS:
            raise InvalidRequest(
                f"block_tokens is {self.block_tokens}; it must lie in 1..{MAX_BLOCK_TOKENS}"
            )

    @cached_property
    def digest(self) -> bytes:
        """32 bytes."""
        return digest(
            "moontide.namespace.v1",
            [
                self.weights_id,
                self.layout.digest,
                self.tokenizer_digest,
                self.block_tokens,
                self.rope_scaling,
                self.adapter_digest,
                self.salt,
            ],
        )


def block_keys(namespace: Namespace, token_ids: TokenIds, *, extra: Extra = ()) -> list[BlockKey]:
    """Keys of the full blocks of `token_ids`; a last partial block has none. Raises InvalidRequest
    on a token id outside u32 or an extra position outside the prompt."""
    tokens = _token_array(token_ids)
    size = namespace.block_tokens
    extras = _extras_by_block(extra, size, len(tokens))
    data = tokens.tobytes()
    head = encode_field("moontide.block.v1") + encode_field(namespace.digest)
    tokens_prefix = field_prefix(TOKENS, 4 * size)
    no_extra = encode_field(0)
    parent = b""
    keys: list[BlockKey] = []
    for index in range(len(tokens) // size):
        tail = no_extra
        if index in extras:
            ids = extras[index]
            tail = encode_field(len(ids)) + b"".join(map(encode_field, ids))
        span = data[4 * size * index : 4 * size * (index + 1)]
        parent = blake3(b"".join((head, encode_field(parent), tokens_prefix, span, tail))).digest(
            BLOCK_KEY_BYTES
        )
        keys.append(BlockKey(parent))
    return keys


def _token_array(token_ids: TokenIds) -> NDArray[np.uint32]:
    try:
        tokens = np.asarray(token_ids)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidRequest(f"token ids must be integers in 0..4294967295: {error}") from error
    if tokens.ndim != 1:
        raise InvalidRequest(f"token ids must be one flat sequence; got {tokens.ndim} dimensions")
    if len(tokens) and tokens.dtype.kind not in "iu":
        raise InvalidRequest(f"token ids must be integers in 0..4294967295; got {tokens.dtype}")
    if len(tokens) and (tokens.min() < 0 or tokens.max() > 0xFFFFFFFF):
        raise InvalidRequest(
            f"token ids span {tokens.min()}..{tokens.max()}; they must lie in 0..4294967295"
        )
    return tokens.astype("<u4")


def _extras_by_block(extra: Extra, block_tokens: int, num_tokens: int) -> dict[int, list[ExtraId]]:
    extras: dict[int, list[ExtraId]] = {}
    for item in extra:
        position, extra_id = item if isinstance(item, tuple) else (0, item)
        if not 0 <= position < max(num_tokens, 1):
            raise InvalidRequest(
                f"extra id at position {position}; the prompt has {num_tokens} tokens"
            )
        extras.setdefault(position // block_tokens, []).append(extra_id)
    return extras


def kv_entry_id(key: BlockKey, shard: Shard) -> EntryId:
    return EntryId(b"k" + key + shard.pack())


def string_entry_id(key: str | bytes) -> EntryId:
    """`"a"` and `b"a"` are the same key. Raises InvalidRequest on an empty or overlong key,
    and on what is neither text nor bytes."""
    try:
        data = key.encode() if isinstance(key, str) else bytes(memoryview(key))
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"key {key!r:.40} is neither bytes nor UTF-8 text: {error}") from error
    if not 1 <= len(data) <= MAX_STRING_KEY_BYTES:
        raise InvalidRequest(f"key has {len(data)} bytes; it must have 1..{MAX_STRING_KEY_BYTES}")
    return EntryId(b"s" + data)


def string_entry_ids(keys: Sequence[str | bytes]) -> list[EntryId]:
    """`string_entry_id` of each, at less cost where all are texts of one line."""
    try:
        entries = ("s" + "\ns".join(keys)).encode().split(b"\n")  # type: ignore[arg-type]  # or below
    except (TypeError, UnicodeEncodeError):  # some are bytes, or wrong
        entries = []
    sizes = set(map(len, entries))
    if len(entries) != len(keys) or min(sizes) < 2 or max(sizes) > MAX_STRING_KEY_BYTES + 1:
        return [string_entry_id(key) for key in keys]
    return cast("list[EntryId]", entries)


def split_kv_entry_id(entry: EntryId) -> tuple[BlockKey, Shard]:
    """Raises InvalidRequest when `entry` is not a KV entry id."""
    if len(entry) != 1 + BLOCK_KEY_BYTES + SHARD_BYTES or entry[:1] != b"k":
        raise InvalidRequest(f"not a KV entry id: {entry[:40].hex()}")
    return BlockKey(entry[1 : 1 + BLOCK_KEY_BYTES]), Shard.unpack(entry[1 + BLOCK_KEY_BYTES :])


def is_block(entry: bytes) -> bool:
    return entry[:1] == b"k"


def block_key_of(entry: bytes) -> bytes:
    """Of a KV entry id, unchecked; so for the next."""
    return entry[1 : 1 + BLOCK_KEY_BYTES]


def shard_of(entry: bytes) -> bytes:
    """Packed."""
    return entry[1 + BLOCK_KEY_BYTES :]
