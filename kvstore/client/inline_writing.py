"""Values that travel with their Put: over TCP all, over a unix socket small ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from xxhash import xxh3_64

from moontide.transfer import Bytes

from .. import wire
from ..keys import EntryId
from ..types import PutResult
from .connections.attachment import Attachment
from .connections.frames import Buffers, Stream
from .connections.link import Link
from .copies import Copies, SummedCopies
from .deadline import Deadline
from .put_options import PutOptions
from .put_results import results_of

LEAST_STREAMED_BYTES = 64 << 10
"""While they are summed the daemon finds room for them: it has the message, which goes ahead."""
LEAST_PIECE_BYTES = 256 << 10
"""To sum less takes no longer than to give the kernel a piece of its own."""
MOST_PIECE_BYTES = 2 << 20
"""A piece is summed, and sent while it is in cache and the daemon receives the one before."""


class InlineWriter:
    """Puts batches of string entries, in order, one result each. `copies_for` a daemon."""

    def __init__(self, link: Link, copies_for: Callable[[Attachment], Copies]) -> None:
        self._link = link
        self._copies_for = copies_for

    def put(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        """In one message."""
        attachment = self._link.open(deadline)
        copies, sizes = self._copies_for(attachment), list(map(len, values))
        num_bytes = sum(sizes)
        payload: Buffers | Stream
        if (
            num_bytes >= LEAST_STREAMED_BYTES
            and attachment.sums_may_follow
            and isinstance(copies, SummedCopies)
        ):
            checksums = []
            payload = Stream(num_bytes + 8 * len(values), partial(_summed, values, num_bytes))
        else:
            checksums = copies.sums(values)
            payload = [_flat(value) for value in values if len(value)]
        message = wire.Put(list(entries), sizes, checksums, *options)
        return results_of(self._link.act(message, deadline, payload).reply, len(values))


def _summed(values: Sequence[Bytes], num_bytes: int) -> Iterator[Buffers]:
    """The values, and behind them their checksums."""
    piece_bytes = max(LEAST_PIECE_BYTES, min(num_bytes // 2, MOST_PIECE_BYTES))
    checksums = []
    parts: list[memoryview | bytes] = []
    left = piece_bytes
    for value in values:
        hasher = xxh3_64()
        for start in range(0, len(value), piece_bytes):
            part = memoryview(value)[start : start + piece_bytes]
            hasher.update(part)
            parts.append(part)
            left -= len(part)
            if left <= 0:
                yield parts
                parts, left = [], piece_bytes
        checksums.append(hasher.intdigest())
    yield [*parts, struct.pack(f"<{len(checksums)}Q", *checksums)]


def _flat(value: Bytes) -> memoryview | bytes:
    return memoryview(value) if isinstance(value, bytearray) else value
