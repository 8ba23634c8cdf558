"""Many entries pinned at once, then read without a word to the daemon.

pin ──one Lookup──► view, get_into: from shared memory ──release──► ended
                    │     ▲                                           ▲
                    └renew┘                  ttl_s without a renew ───┘
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .. import wire
from ..errors import Corrupt, InvalidRequest, ViewExpired
from ..keys import EntryId, string_entry_id, string_entry_ids
from ..types import Located
from .batches import batches
from .buffers import writable_bytes
from .connections.attachment import Attachment
from .connections.link import Link
from .deadline import Deadline, check_timeout
from .reading import Reader
from .view import Pin, Pins, View

if TYPE_CHECKING:
    from typing_extensions import Buffer

Key = str | bytes


class _Held(NamedTuple):
    attachment: Attachment
    located: Located
    source: memoryview | None  # None: without shared memory


class PinnedKeys:
    """Entries that stay as they are until `release` (or the end of the `with`), or until `ttl_s`
    after the last `renew`: then `view` and `get_into` raise ViewExpired, and leaving a view does
    once its bytes have changed. Removing or replacing an entry changes nothing here. Thread-safe.

    `keys` are those that were found, in the order asked."""

    def __init__(
        self, reader: Reader, link: Link, pins: Pins, *, ttl_s: float, timeout_s: float
    ) -> None:
        """Nothing is pinned yet; see `take`."""
        self._tickets: list[Pin] = []
        self.keys: list[Key] = []
        self._reader = reader
        self._link = link
        self._pins = pins
        self._ttl_s = check_timeout(ttl_s, "ttl_s")
        self._timeout_s = timeout_s
        self._held: dict[EntryId, _Held] = {}
        self._ends_at = time.monotonic() + self._ttl_s

    def take(self, keys: Sequence[Key], deadline: Deadline) -> None:
        """Pins what is there; called once. One message, unless there are more keys than fit it."""
        entries = string_entry_ids(keys)
        for part in batches(entries):
            found, answer = self._reader.locate(entries[part], deadline, self._ttl_s)
            assert isinstance(answer.reply, wire.LookupReply)
            if answer.reply.ticket:
                pin = Pin(self._pins, answer.attachment, 0, answer.reply.ticket)
                self._tickets.append(pin)
            for key, entry, located in zip(keys[part], entries[part], found, strict=True):
                if located is not None:
                    source = self._source(answer.attachment, located, deadline)
                    self._held[entry] = _Held(answer.attachment, located, source)
                    self.keys.append(key)

    def view(self, key: Key, *, timeout_s: float | None = None) -> View:
        """The entry in place, without a round trip (over TCP a copy, with one). Raises ViewExpired
        when the pin has ended, InvalidRequest for a key that was not found."""
        held = self._find(key)
        if held.source is None:
            return View.of_copy(self._fetch(held, timeout_s))
        return View(
            held.source,
            place=(held.attachment, held.located),
            pin=None,
            on_corrupt=self._reader.report_corrupt,
        )

    def get_into(self, key: Key, buffer: Buffer, *, timeout_s: float | None = None) -> int:
        """Fills the front of `buffer`, verified; the entry's size. Raises as `view`, and Corrupt
        when the bytes are not what was put."""
        held = self._find(key)
        source = held.source
        if source is None:
            source = memoryview(self._fetch(held, timeout_s))
        actual = self._reader.copy_into(writable_bytes(buffer), source, held.located)
        if held.source is not None and not held.attachment.is_intact(held.located):
            raise _expired()
        if actual != held.located.checksum:
            self._reader.report_corrupt(held.attachment, held.located)
            raise Corrupt(f"the {len(source)} bytes of {key!r} are not those that were put")
        return len(source)

    def renew(self, ttl_s: float, *, timeout_s: float | None = None) -> None:
        """The pins hold for `ttl_s` from now. Raises ViewExpired when they have ended."""
        ends_at = time.monotonic() + check_timeout(ttl_s, "ttl_s")
        deadline = Deadline(timeout_s or self._timeout_s)
        self._check()
        for pin in self._tickets:
            try:
                self._link.ask(wire.RenewTicket(pin.ticket, ttl_s), deadline)
            except InvalidRequest as error:
                self._ends_at = 0.0
                raise _expired() from error
        self._ends_at = ends_at

    def release(self) -> None:
        """Ends the pins, without waiting. Idempotent."""
        tickets, self._tickets = self._tickets, []
        for pin in tickets:
            pin.release()
        self._ends_at = 0.0

    def __enter__(self) -> PinnedKeys:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __del__(self) -> None:
        for pin in self._tickets:
            pin.drop()

    def _source(
        self, attachment: Attachment, located: Located, deadline: Deadline
    ) -> memoryview | None:
        if not attachment.shared_memory:
            return None
        source = self._reader.source(attachment, located, deadline)
        if source is None:
            raise InvalidRequest(f"the store placed {located} outside its segment")
        return source

    def _find(self, key: Key) -> _Held:
        self._check()
        held = self._held.get(string_entry_id(key))
        if held is None:
            raise InvalidRequest(f"{key!r} is not among the keys that were found and pinned")
        return held

    def _check(self) -> None:
        if time.monotonic() >= self._ends_at:
            raise _expired()

    def _fetch(self, held: _Held, timeout_s: float | None) -> bytes:
        deadline = Deadline(timeout_s or self._timeout_s)
        value = self._reader.fetch(held.located, deadline)
        if value is None:
            raise _expired()
        return value


def _expired() -> ViewExpired:
    return ViewExpired("these pins have ended; pin again, with a longer ttl_s or with renew()")
