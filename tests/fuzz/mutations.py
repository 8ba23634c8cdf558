"""Damage that knows what it damages: golden frames taken apart, changed in one or a few places, and
put together again, with lengths and counts that lie where they can."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

DATA = Path(__file__).parents[1] / "data"
NUMBERS = [0, 1, -1, 2, 127, 128, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 62]
NUMBERS += [(1 << 63) - 1, (1 << 64) - 1, -(1 << 31), -(1 << 63)]
FLOATS = [0.0, -1.0, 0.001, 1e300, -1e300, float("nan"), float("inf"), float("-inf")]
COUNTS = [
    b"\xdd\xff\xff\xff\xff",  # an array of 2^32 - 1
    b"\xdc\xff\xff",
    b"\xc6\xff\xff\xff\xff",  # so many bytes
    b"\xdb\xff\xff\xff\xff",  # characters
    b"\xdf\xff\xff\xff\xff",  # pairs
    b"\xc9\xff\xff\xff\xff\x01",  # an extension type
    b"\xd6\xff" + bytes(4),  # a timestamp
    b"\xc1",  # never used
    b"\x91" * 20_000,  # deep
]


def golden_frames(*files: str) -> list[bytes]:
    return [
        bytes.fromhex(case["frame"])
        for file in files
        for case in json.loads((DATA / file).read_text())["cases"]
    ]


MOST_BYTES = 1 << 20
"""Of what one change makes long."""
LARGEST_NUMBER = (1 << 64) - 1


class Mutator:
    """Of frames whose header of `header_bytes` is followed by a msgpack body."""

    def __init__(self, rng: random.Random, header_bytes: int) -> None:
        self._rng = rng
        self._header_bytes = header_bytes

    def body(self, frame: bytes) -> bytes:
        """A body like this frame's, that may decode."""
        tree = msgspec.msgpack.decode(frame[self._header_bytes :])
        for _ in range(self._rng.choice([0, 1, 1, 1, 2, 4])):
            tree = self._change(tree, at_top=True)
        body = msgspec.msgpack.encode(tree)
        kind = self._rng.random()
        if kind < 0.15:
            return self.bytes(body)
        if kind < 0.25:  # a count that lies, where some value was
            at = self._rng.randrange(1, len(body) + 1)
            return body[:at] + self._rng.choice(COUNTS) + body[at:]
        return body

    def bytes(self, data: bytes) -> bytes:
        """The same with bits flipped, bytes gone, doubled or strange."""
        damaged = bytearray(data)
        for _ in range(self._rng.choice([1, 1, 2, 5])):
            if not damaged:
                break
            at = self._rng.randrange(len(damaged))
            act: Callable[[bytearray, int], None] = self._rng.choice(
                [self._flip, self._cut, self._double, self._smear]
            )
            act(damaged, at)
        return bytes(damaged)

    # -- trees ----------------------------------------------------------------------------

    def _change(self, tree: Any, *, at_top: bool = False) -> Any:
        """`tree` with one place changed. The tag, which comes first at the top, mostly stays."""
        if not isinstance(tree, list):
            return self._other(tree)
        if not tree or (not at_top and self._rng.random() < 0.3):
            return self._other(tree)
        keep = 1 if at_top and self._rng.random() < 0.95 else 0
        if keep == len(tree):
            return tree
        index = self._rng.randrange(keep, len(tree))
        return [*tree[:index], self._change(tree[index]), *tree[index + 1 :]]

    def _other(self, value: Any) -> Any:
        if self._rng.random() < 0.1:  # of another type
            return self._rng.choice([None, True, 0, 1.5, b"", "", [], [[]], {}, b"x" * 20, ["x"]])
        if isinstance(value, bool) or value is None:
            return self._rng.choice([True, False, None, 0.5])
        if isinstance(value, int):
            return self._rng.choice(
                [*NUMBERS, min(value + 1, LARGEST_NUMBER), self._rng.getrandbits(63)]
            )
        if isinstance(value, float):
            return self._rng.choice(FLOATS)
        if isinstance(value, bytes):
            return self._rng.choice(
                [b"", value[:-1], _long(value), self.bytes(value), value + b"\0" * 8]
            )
        if isinstance(value, str):
            return self._rng.choice(["", _long(value), "keep", "\0", "é" * 40])
        if isinstance(value, list):
            return self._rng.choice(
                [[], value * 2, value[:-1], _long(value), [*value, None], value[::-1]]
            )
        return value

    # -- bytes ----------------------------------------------------------------------------

    def _flip(self, data: bytearray, at: int) -> None:
        data[at] ^= 1 << self._rng.randrange(8)

    def _cut(self, data: bytearray, at: int) -> None:
        del data[at : at + self._rng.choice([1, 4, len(data)])]

    def _double(self, data: bytearray, at: int) -> None:
        data[at:at] = data[at : at + 16]

    def _smear(self, data: bytearray, at: int) -> None:
        end = min(len(data), at + self._rng.choice([1, 8, 64]))
        data[at:end] = self._rng.choice([bytes(end - at), b"\xff" * (end - at)])


T = TypeVar("T", bytes, str, list[Any])


def _long(value: T) -> T:
    return value * max(2, min(17_000, MOST_BYTES // (len(msgspec.msgpack.encode(value)) + 1)))
