"""Values that come over the socket: received where they belong, and summed piece by piece, each
while it is still in cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from xxhash import xxh3_64

from .. import wire
from ..errors import InvalidRequest, StoreUnavailable
from .connections.frames import Sink
from .targets import SMALL_VALUE_BYTES, Target

T = TypeVar("T")

PIECE_BYTES = 1 << 20
"""Received at once at most, and then summed. A quarter of it, waited for until it is full, cost a
value of 1 MiB a half more: whoever empties the socket so soon sleeps more often."""


class Arrivals(Generic[T]):
    """The values of one Get of `indices`, on their way to `target`."""

    def __init__(self, indices: Sequence[int], target: Target[T]) -> None:
        self._indices = indices
        self._target = target
        self._placed: wire.Reply | None = None
        self._hits: list[Hit] | None = None  # of that one, as the rest
        self._values: _Values | None = None
        self._refusal = ""  # as text: an error would keep the caller's buffers with its frames

    def place(self, reply: wire.Reply, payload_bytes: int) -> Sink | None:
        """A `Place`. Small values are received together and copied."""
        self._begin(reply, payload_bytes)
        hits = self._hits
        if hits is None or payload_bytes < len(hits) * SMALL_VALUE_BYTES:
            return None
        try:
            places = [self._target.room(index, size) for index, size, _ in hits]
        except InvalidRequest as error:
            self._refusal = str(error)
            return _Nowhere(payload_bytes)
        self._values = _Values(places)
        return self._values

    def results(self, reply: wire.Reply, payload: memoryview) -> Iterator[tuple[int, T | None]]:
        """Of those that are there; None: not what was put. `payload` is what had no place. Raises
        InvalidRequest for a buffer that is too small, StoreUnavailable when the answer contradicts
        itself."""
        if reply is not self._placed:  # it was whole at once
            self._begin(reply, len(payload))
        if self._refusal:
            raise InvalidRequest(self._refusal)
        hits, values = self._hits, self._values
        if hits is None:
            raise StoreUnavailable(
                f"the store answered a Get of {len(self._indices)} entries with {reply!r:.100} "
                "and bytes that do not match it"
            )
        if not hits:
            return
        found = [index for index, _, _ in hits]
        taken: Sequence[T]
        if values is None:
            taken, sums = self._target.all_summed(found, _split(payload, hits))
        else:
            taken = list(map(self._target.received, found, values.places))
            sums = values.sums
        for (index, _, expected), value, actual in zip(hits, taken, sums, strict=True):
            yield index, value if expected in (0, actual) else None

    def _begin(self, reply: wire.Reply, payload_bytes: int) -> None:
        self._placed, self._values, self._refusal = reply, None, ""
        self._hits = _hits(self._indices, reply, payload_bytes)


Hit = tuple[int, int, int]
"""Index, size, expected checksum: 0 without one."""


def _hits(indices: Sequence[int], reply: wire.Reply, payload_bytes: int) -> list[Hit] | None:
    """None: no answer to a Get of so many with such a payload."""
    if not isinstance(reply, wire.GetReply):
        return None
    if not len(indices) == len(reply.sizes) == len(reply.checksums):
        return None
    found = zip(indices, reply.sizes, reply.checksums, strict=True)
    hits = [hit for hit in found if hit[1] >= 0]
    return hits if sum([size for _, size, _ in hits]) == payload_bytes else None


def _split(payload: memoryview, hits: Sequence[Hit]) -> list[memoryview]:
    parts, start = [], 0
    for _, size, _ in hits:
        parts.append(payload[start : start + size])
        start += size
    return parts


class _Values:
    """A sink for values one behind another, each to its place."""

    def __init__(self, places: Sequence[memoryview]) -> None:
        self.places = places
        self.sums: list[int] = []
        """xxh3-64 of those that are complete."""
        self.num_bytes = self.remaining = sum(map(len, places))
        self._done = 0  # bytes of the current one
        self._hasher = xxh3_64()
        self._end_complete()

    def room(self) -> memoryview:
        return self.places[len(self.sums)][self._done : self._done + PIECE_BYTES]

    def filled(self, num_bytes: int) -> None:
        self._hasher.update(self.room()[:num_bytes])
        self._done += num_bytes
        self.remaining -= num_bytes
        self._end_complete()

    def _end_complete(self) -> None:
        while len(self.sums) < len(self.places) and self._done == len(self.places[len(self.sums)]):
            self.sums.append(self._hasher.intdigest())
            self._hasher, self._done = xxh3_64(), 0


class _Nowhere:
    """A sink for what nobody takes."""

    def __init__(self, num_bytes: int) -> None:
        self.remaining = num_bytes
        self._scratch = memoryview(bytearray(PIECE_BYTES))

    def room(self) -> memoryview:
        return self._scratch[: self.remaining]

    def filled(self, num_bytes: int) -> None:
        self.remaining -= num_bytes
