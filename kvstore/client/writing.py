"""String entries into the store: small and middling ones through runs, large ones through a
reservation each, so that a value that is there already is not copied first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from moontide.transfer import Bytes, CopyHelper

from ..errors import InvalidRequest
from ..keys import EntryId
from ..types import PutResult
from .connections.link import Link
from .connections.writes import RunningWrites
from .copies import Copies
from .deadline import Deadline
from .granted import GrantedMemory
from .put_options import PutOptions
from .reserved_writing import ReservedWriter
from .run_writing import RunWriter

LEAST_RESERVED_BYTES = 4 << 20
"""From here on one more round trip costs less than a copy for nothing."""


class Writer:
    """Puts batches of string entries, in order, one result each."""

    def __init__(
        self,
        link: Link,
        writes: RunningWrites,
        on_grant: Callable[[], object],
        *,
        copies: Copies,
        helper: CopyHelper,
    ) -> None:
        """`on_grant` is called before a granted segment is first mapped."""
        memory = GrantedMemory(link, on_grant)
        self._link = link
        self._by_run = RunWriter(link, memory, writes, copies, helper)
        self._reserved = ReservedWriter(link, memory, writes, copies, helper)
        self.runs = self._by_run.runs

    def put_one(
        self, entry: EntryId, value: Bytes, options: PutOptions, deadline: Deadline
    ) -> PutResult:
        """As `put`."""
        attachment, size = self._link.open(deadline), len(value)
        if (
            attachment.run_bytes
            and size < LEAST_RESERVED_BYTES
            and size <= attachment.max_entry_bytes
        ):
            result = self._by_run.put_one(entry, value, options, deadline)
            if result is not None:
                return result
        return self.put([entry], [value], options, deadline)[0]

    def put(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        """Raises InvalidRequest when a value is larger than the store's largest entry."""
        attachment = self._link.open(deadline)
        largest = max(map(len, values), default=0)
        if largest > attachment.max_entry_bytes:
            raise InvalidRequest(
                f"value of {largest} bytes; this store takes {attachment.max_entry_bytes} "
                "at most: raise its --segment or split the value"
            )
        if not entries or not attachment.run_bytes:
            return self._reserved.put(entries, values, options, deadline)
        if largest < LEAST_RESERVED_BYTES:
            return self._put_by_run(entries, values, options, deadline)
        results: list[PutResult] = []
        for is_large, group in groupby(values, lambda value: len(value) >= LEAST_RESERVED_BYTES):
            part = slice(len(results), len(results) + sum(1 for _ in group))
            put = self._reserved.put if is_large else self._put_by_run
            results += put(entries[part], values[part], options, deadline)
        return results

    def _put_by_run(
        self,
        entries: Sequence[EntryId],
        values: Sequence[Bytes],
        options: PutOptions,
        deadline: Deadline,
    ) -> list[PutResult]:
        results = self._by_run.put(entries, values, options, deadline)
        left = slice(len(results), len(entries))
        if len(results) < len(entries):
            results += self._reserved.put(entries[left], values[left], options, deadline)
        return results
