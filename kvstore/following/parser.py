"""Reading server-sent events from another process, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MAX_EVENT_BYTES = 16 << 20


class EventTooLarge(Exception):
    """The other end sends an event without end."""


@dataclass(frozen=True, slots=True)
class Event:
    data: bytes
    name: str = ""


class EventParser:
    """Bytes in, events out; comments (keep-alives) are skipped. `\\n`, `\\r\\n` line ends."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # bytes of `_rest` known to hold no line end
        self._data: list[bytes] = []
        self._name = ""
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Raises EventTooLarge."""
        self._rest += piece
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end]).removesuffix(b"\r")
            del self._rest[: end + 1]
            self._searched = 0
            event = self._line(line)
            if event is not None:
                yield event
        self._searched = len(self._rest)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event exceeds {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(b"\n".join(self._data), self._name) if self._data else None
            self._data, self._name, self._size = [], "", 0
            return event
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(line)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None
