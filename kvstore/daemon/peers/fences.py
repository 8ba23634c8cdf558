"""Which entries are being changed now, and by which store: meanwhile nobody else writes strings
among them here or brings copies of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from ...errors import Busy
from ...keys import BlockKey, EntryId, block_key_of, is_block

MAX_FENCED = 65536


class Fences:
    """Each entry has at most one holder, until a time or its release: another store's instance, or
    one change of our own (our instance, #, a number). `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._held: dict[EntryId, tuple[str, float]] = {}
        self._watched: list[set[EntryId]] = []
        self.num_block_fences = 0
        """Grows when blocks are fenced: what others said of theirs before that is void."""

    def __len__(self) -> int:
        return len(self._held)

    def take(self, entries: Sequence[EntryId], holder: str, until: float, now: float) -> None:
        """All of them or none; the same holder may take them again. Raises Busy."""
        for entry in entries:
            other = self._holder(entry, now)
            if other not in (None, holder):
                raise _changed(entry, other)
        if len(self._held) + len(entries) > MAX_FENCED:
            self._expire(now)
            if len(self._held) + len(entries) > MAX_FENCED:
                raise Busy(f"{len(self._held)} entries are being changed, the limit; retry later")
        for entry in entries:
            self._held[entry] = (holder, until)
        self.num_block_fences += any(map(is_block, entries))
        for unchanged in self._watched:
            unchanged.difference_update(entries)

    def release(self, entries: Iterable[EntryId], holder: str) -> None:
        """Those of another holder stay."""
        for entry in entries:
            if self._held.get(entry, ("", 0.0))[0] == holder:
                del self._held[entry]

    def check(self, entries: Iterable[EntryId], store: str, now: float) -> None:
        """Raises Busy when a store other than this one changes an entry."""
        for entry in entries:
            other = self._holder(entry, now)
            if other is not None and not other.startswith(store):
                raise _changed(entry, other)

    def leading(self, keys: Sequence[BlockKey], now: float) -> list[BlockKey]:
        """Blocks before the first that is being removed."""
        if not self._held:
            return [*keys]
        return [*takewhile(lambda key: not self.is_fenced(EntryId(b"k" + key), now), keys)]

    def is_fenced(self, entry: EntryId, now: float) -> bool:
        return self._holder(entry, now) is not None

    @contextlib.contextmanager
    def watch(self, entries: Sequence[EntryId], now: float) -> Iterator[set[EntryId]]:
        """Those of them that nobody changes, as long as that is so: an answer about the others may
        be older than a change that has long ended."""
        unchanged = {entry for entry in entries if not self.is_fenced(entry, now)}
        self._watched.append(unchanged)
        try:
            yield unchanged
        finally:
            self._watched = [each for each in self._watched if each is not unchanged]

    def _holder(self, entry: EntryId, now: float) -> str | None:
        holder, until = self._held.get(entry, (None, now))
        return holder if now < until else None

    def _expire(self, now: float) -> None:
        self._held = {entry: held for entry, held in self._held.items() if now < held[1]}


def _changed(entry: EntryId, holder: str | None) -> Busy:
    if is_block(entry):
        what = f"kv:{block_key_of(entry).hex()} is being removed"
    else:
        what = f"{entry[1:101].decode('utf-8', 'replace')!r} is being changed"
    return Busy(f"{what} by store {holder}; retry later")
