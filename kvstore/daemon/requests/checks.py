"""Bounds of what a message may say, checked before the store sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, cast

from ...errors import InvalidRequest
from ...keys import BLOCK_KEY_BYTES, MAX_STRING_KEY_BYTES, BlockKey, EntryId, is_block
from ...layout import SHARD_BYTES, Shard
from ...wire import MAX_KEYS

MAX_SECONDS = 86400.0
MAX_NAMESPACES = 64
"""Of one removal."""
NAMESPACE_BYTES = 32
_BLOCK_BYTES = 1 + BLOCK_KEY_BYTES
_KV_ENTRY_BYTES = 1 + BLOCK_KEY_BYTES + SHARD_BYTES
_MAX_READ_BYTES = 1 << 50
_MAX_STRING_BYTES = 1 + MAX_STRING_KEY_BYTES
_STRINGS = frozenset(b"s")
"""What `_kind` gives for string entries."""
_kind = itemgetter(0)
_MAX_U32 = 0xFFFFFFFF
_MAX_U64 = 0xFFFFFFFFFFFFFFFF


def entry_ids(entries: list[bytes]) -> list[EntryId]:
    """`entries` as ids of string entries or shards of blocks."""
    num_entries(entries)
    sizes = set(map(len, entries))
    if not sizes or (
        min(sizes) >= 2 and max(sizes) <= _MAX_STRING_BYTES and set(map(_kind, entries)) == _STRINGS
    ):
        return cast(list[EntryId], entries)
    for entry in entries:
        if entry.startswith(b"s") and 2 <= len(entry) <= _MAX_STRING_BYTES:
            continue
        if not entry.startswith(b"k") or len(entry) != _KV_ENTRY_BYTES:
            raise InvalidRequest(
                f"entry id of {len(entry)} bytes starting with {entry[:8].hex()}; a string entry's "
                f"is 's' and 1..{MAX_STRING_KEY_BYTES} bytes, a block's 'k' and "
                f"{_KV_ENTRY_BYTES - 1}"
            )
    return cast(list[EntryId], entries)


def removable_ids(entries: list[bytes]) -> list[EntryId]:
    """As `entry_ids`; blocks without their shards: all of them are meant."""
    whole = [each for each in entries if len(each) != _BLOCK_BYTES or not each.startswith(b"k")]
    entry_ids(whole)
    num_entries(entries)
    return [EntryId(each[:_BLOCK_BYTES] if is_block(each) else each) for each in entries]


def namespaces(digests: Sequence[bytes]) -> None:
    if any(len(digest) != NAMESPACE_BYTES for digest in digests) or len(digests) > MAX_NAMESPACES:
        raise InvalidRequest(
            f"{len(digests)} digests of namespaces; at most {MAX_NAMESPACES} of {NAMESPACE_BYTES} "
            "bytes each"
        )


def num_entries(entries: Sequence[bytes]) -> None:
    if len(entries) > MAX_KEYS:
        raise InvalidRequest(f"{len(entries)} entries; one message names at most {MAX_KEYS}")


def string_ids(entries: list[bytes]) -> list[EntryId]:
    """As `entry_ids`, for messages that only write string entries."""
    ids = entry_ids(entries)
    if not _STRINGS.issuperset(map(_kind, ids)):
        block = next(filter(is_block, ids))
        raise InvalidRequest(
            f"entry id starting with {block[:8].hex()} is no string entry's; blocks are "
            "written with ReserveBlocks"
        )
    return ids


def block_keys(keys: bytes) -> list[BlockKey]:
    num_keys, rest = divmod(len(keys), BLOCK_KEY_BYTES)
    if rest or num_keys > MAX_KEYS:
        raise InvalidRequest(
            f"{len(keys)} bytes of block keys; at most {MAX_KEYS} of {BLOCK_KEY_BYTES} bytes each"
        )
    return [
        BlockKey(keys[start : start + BLOCK_KEY_BYTES])
        for start in range(0, len(keys), BLOCK_KEY_BYTES)
    ]


def read_bytes(num_bytes: int) -> None:
    """What a client says that it read: a figure for the counters, so only its sanity matters."""
    if not 0 <= num_bytes <= _MAX_READ_BYTES:
        raise InvalidRequest(f"read_bytes is {num_bytes}; it must lie in 0..{_MAX_READ_BYTES}")


def numbers(packed: bytes) -> memoryview[int]:
    """u32 LE each."""
    if len(packed) % 4 or len(packed) > 4 * MAX_KEYS:
        raise InvalidRequest(f"{len(packed)} bytes of u32; at most {MAX_KEYS} of 4 bytes each")
    return memoryview(packed).cast("I")


def shards(packed: Sequence[bytes], num_keys: int) -> list[Shard]:
    """At least one, and at most MAX_KEYS (block, shard) pairs."""
    if not packed or len(packed) * max(num_keys, 1) > MAX_KEYS:
        raise InvalidRequest(
            f"{num_keys} blocks of {len(packed)} shards; 1..{MAX_KEYS} pairs fit one message"
        )
    return [Shard.unpack(shard) for shard in packed]


def same_length(**lists: Sequence[object]) -> None:
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1 or max(lengths.values()) > MAX_KEYS:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InvalidRequest(f"lengths must be equal and at most {MAX_KEYS}; got {told}")


def reservations(slots: Sequence[int], generations: Sequence[int]) -> None:
    same_length(slots=slots, generations=generations)
    unsigned("slots", slots, _MAX_U32)
    unsigned("generations", generations, _MAX_U32)


def reservation(slot: int, generation: int) -> None:
    if not (0 <= slot <= _MAX_U32 and 0 <= generation <= _MAX_U32):
        raise InvalidRequest(
            f"slot {slot}, generation {generation}; both must lie in 0..{_MAX_U32}"
        )


def checksums(values: Sequence[int]) -> None:
    unsigned("checksums", values, _MAX_U64)


def unsigned(name: str, values: Sequence[int], bound: int) -> None:
    if values and not (min(values) >= 0 and max(values) <= bound):
        raise InvalidRequest(
            f"{name} span {min(values)}..{max(values)}; they must lie in 0..{bound}"
        )


def seconds(name: str, value: Any, *, least: float = 0.0) -> None:
    """None passes. NaN does not."""
    if value is not None and not (math.isfinite(value) and least <= value <= MAX_SECONDS):
        raise InvalidRequest(f"{name} is {value}; it must lie in {least:g}..{MAX_SECONDS:g}")
