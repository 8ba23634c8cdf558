"""What every contestant of `moontide bench transfer` gives: a client half that moves bytes, and a
server half in a process of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Local(enum.IntEnum):
    """Memory of the client half."""

    SOURCE = 0  # `filled`
    TARGET = 1


class Remote(enum.IntEnum):
    """Memory of the server half, as large as the client's."""

    SERVED = 0  # `filled`
    LANDING = 1


class Span(NamedTuple):
    """The same bytes of both memories."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Way:
    """`do`: "read" brings remote bytes here, "write" takes local bytes there."""

    do: str
    local: Local
    remote: Remote


READ = Way("read", Local.TARGET, Remote.SERVED)
WRITE = Way("write", Local.SOURCE, Remote.LANDING)
WIPE = Way("write", Local.TARGET, Remote.LANDING)
READ_BACK = Way("read", Local.TARGET, Remote.LANDING)

Call = Callable[[], None]
"""Moves its slices; the bytes are there when it returns. Raises Failed."""


class Mover(Protocol):
    """The client half."""

    def open(self, streams: int, threads: int) -> None:
        """Connections for so many streams in all, used by so many threads; the former end."""

    def prepare(self, way: Way, slices: Sequence[Span], thread: int) -> Call:
        """A call of that thread that can be made again and again, with all made that can be made
        beforehand."""

    def close(self) -> None: ...
