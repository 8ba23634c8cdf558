"""Granted segments of whatever daemon there is, mapped when first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import InvalidRequest
from .connections.attachment import Holder, SegmentTaken
from .connections.link import Link
from .deadline import Deadline


class GrantedMemory:
    """`on_grant` is called before a granted segment is first mapped."""

    def __init__(self, link: Link, on_grant: Callable[[], object]) -> None:
        self._link = link
        self._on_grant = on_grant

    def hold(
        self,
        holder: Holder,
        segment: int,
        reservations: Iterable[tuple[int, int]],
        deadline: Deadline,
    ) -> memoryview:
        """The segment's bytes; it is not given back before `holder.end`. Raises SegmentTaken when
        it was already, and with it the reservations (slot, generation)."""
        attachment = holder.attachment
        if not attachment.is_granted(segment):
            self._on_grant()
            try:
                self._link.map_segment(attachment, segment, deadline, writable=True)
            except InvalidRequest as error:
                raise SegmentTaken(str(error)) from error
        return holder.hold(segment, reservations)
