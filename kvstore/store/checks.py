"""Checks of what callers pass: InvalidRequest names the value, the bound and the fix."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import InvalidRequest
from ..keys import BLOCK_KEY_BYTES, MAX_STRING_KEY_BYTES
from ..layout import Shard
from ..wire import MAX_KEYS
from .types import Pieces

MAX_CHECKSUM = (1 << 64) - 1
_STRING_KIND = ord("s")
MAX_ENTRY_TTL_SECONDS = 10 * 365 * 86400.0


def check_entries(entries: Sequence[bytes], sizes: Sequence[int]) -> None:
    """String entry ids and their sizes."""
    if len(entries) != len(sizes) or len(entries) > MAX_KEYS:
        raise InvalidRequest(
            f"{len(entries)} entries with {len(sizes)} sizes; give as many, at most {MAX_KEYS}"
        )
    check_string_entries(entries)
    if sizes and min(sizes) < 0:
        raise InvalidRequest(f"an entry of {min(sizes)} bytes; sizes are at least 0")


def check_string_entries(entries: Sequence[bytes]) -> None:
    if are_string_entries(entries):
        return
    for entry in entries:
        if not are_string_entries([entry]):
            raise InvalidRequest(
                f"{entry[:40].hex()} ({len(entry)} bytes) is not a string entry id: "
                f'b"s" and a key of 1..{MAX_STRING_KEY_BYTES} bytes'
            )


def are_string_entries(entries: Sequence[bytes]) -> bool:
    """Whether all are ids of string entries."""
    for entry in entries:  # at 50 ns each faster than anything built of map, min and set
        if not 2 <= len(entry) <= MAX_STRING_KEY_BYTES + 1 or entry[0] != _STRING_KIND:
            return False
    return True


def check_pieces(pieces: Pieces) -> None:
    entries, offsets, sizes, checksums = pieces
    if (
        not len(offsets) == len(sizes) == len(checksums) == 8 * len(entries)
        or len(entries) > MAX_KEYS
    ):
        lengths = f"{len(offsets)}, {len(sizes)} and {len(checksums)}"
        raise InvalidRequest(
            f"{len(entries)} entries (at most {MAX_KEYS}) with {lengths} bytes of offsets, "
            "sizes and checksums; give 8 for each entry"
        )
    check_string_entries(entries)


def check_if_exists(if_exists: str) -> None:
    if if_exists not in ("keep", "replace", "error"):
        raise InvalidRequest(f"if_exists is {if_exists!r}; known: keep, replace, error")


def check_keys(keys: Sequence[bytes]) -> None:
    """Block keys."""
    for key in keys:
        if len(key) != BLOCK_KEY_BYTES:
            raise InvalidRequest(f"a block key has {BLOCK_KEY_BYTES} bytes; got {len(key)}")


def check_chain(keys: Sequence[bytes], shards: Sequence[Shard], parent: bytes = b"") -> None:
    """A chain of different blocks in different shards."""
    check_keys(keys)
    if parent:
        check_keys([parent])
    if not shards or len(set(shards)) != len(shards):
        raise InvalidRequest(f"{len(shards)} shards; give at least one and each once")
    if len({parent, *keys}) != len(keys) + 1:
        raise InvalidRequest("a chain names a block twice")
    if len(keys) * len(shards) > MAX_KEYS:
        raise InvalidRequest(
            f"{len(keys)} blocks of {len(shards)} shards; one call names at most {MAX_KEYS} entries"
        )


def check_checksums(checksums: Sequence[int]) -> None:
    if checksums and not 0 <= min(checksums) <= max(checksums) <= MAX_CHECKSUM:
        raise InvalidRequest(f"a checksum lies outside 0..{MAX_CHECKSUM}")


def check_same_length(**values: Sequence[int]) -> None:
    if len(set(map(len, values.values()))) > 1:
        lengths = ", ".join(f"{len(value)} {name}" for name, value in values.items())
        raise InvalidRequest(f"{lengths}: give as many of each")


def check_ttl(name: str, seconds: float, most: float) -> None:
    if not (math.isfinite(seconds) and 0 < seconds <= most):
        raise InvalidRequest(f"{name} is {seconds}; give seconds above 0 and at most {most:g}")
