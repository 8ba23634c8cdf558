"""What a store may answer, as a dict knows it: a key's value is one of the few that it can be, and
it is there surely, or perhaps, or surely not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Moment(NamedTuple):
    """When something happened: not before, not after (monotonic seconds)."""

    begin: float
    end: float


@dataclass(slots=True)
class Known:
    """One key. No `values`: it was removed, and nothing comes back."""

    values: list[bytes] = field(default_factory=list)
    surely: bool = False  # one of them is there
    flushed: bool = False  # a kill does not take it
    ends: Moment | None = None  # its TTL

    def is_over(self, asked: Moment) -> bool:
        return self.ends is not None and self.ends.end < asked.begin

    def must_be_there(self, asked: Moment) -> bool:
        return self.surely and (self.ends is None or asked.end < self.ends.begin)


class Strings:
    """String keys. `keeps`: the store has room for everything, so that nothing is evicted."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._known: dict[str, Known] = {}

    def of(self, key: str) -> Known:
        return self._known.setdefault(key, Known())

    def stored(self, key: str, value: bytes, called: Moment, ttl_s: float | None = None) -> None:
        ends = ttl_s and Moment(called.begin + ttl_s, called.end + ttl_s)
        self._known[key] = Known([value], surely=self._keeps, ends=ends or None)

    def perhaps_stored(self, key: str, value: bytes) -> None:
        """A put with `replace` whose answer nobody heard."""
        known = self.of(key)
        known.surely = known.surely and bool(known.values)
        known.flushed, known.ends = False, None
        known.values.append(value)

    def removed(self, keys: Iterable[str]) -> None:
        self._known.update((key, Known()) for key in keys)

    def evicted(self, keys: Iterable[str], *, from_dram_only: bool) -> None:
        for key in keys:
            known = self.of(key)
            known.surely = known.surely and from_dram_only and known.flushed

    def flushed(self) -> None:
        for known in self._known.values():
            known.flushed = known.ends is None and len(known.values) == 1

    def lost_power(self) -> None:
        """The daemon was killed."""
        for known in self._known.values():
            known.surely = known.surely and known.flushed

    def stopped(self) -> None:
        """The daemon was told to stop, and wrote what it had."""
        for known in self._known.values():
            known.surely = known.surely and known.ends is None

    def all_removed(self) -> None:
        self.removed(list(self._known))

    def to_be_flushed(self) -> set[str]:
        return {key for key, known in self._known.items() if known.surely and known.ends is None}

    # -- what was answered ----------------------------------------------------------------

    def check_get(self, key: str, got: bytes | None, asked: Moment) -> None:
        known = self.of(key)
        if got is None:
            assert not known.must_be_there(asked), f"{key} is gone: {describe(known)}"
            return
        assert not known.is_over(asked), f"{key} outlived its TTL"
        assert got in known.values, f"{key}: {len(got)} bytes {got[:16].hex()}…, {describe(known)}"
        known.values = [got]

    def check_size(self, key: str, size: int | None, asked: Moment) -> None:
        known = self.of(key)
        if size is None:
            assert not known.must_be_there(asked), f"{key} is gone: {describe(known)}"
            return
        assert not known.is_over(asked), f"{key} outlived its TTL"
        assert size in map(len, known.values), f"{key}: {size} bytes, {describe(known)}"

    def check_there(self, key: str, there: bool, asked: Moment) -> None:
        known = self.of(key)
        if there:
            assert known.values, f"{key} was removed and exists"
            assert not known.is_over(asked), f"{key} outlived its TTL"
        else:
            assert not known.must_be_there(asked), f"{key} is gone: {describe(known)}"


def describe(known: Known) -> str:
    sizes = ", ".join(f"{len(value)} bytes {value[:16].hex()}…" for value in known.values)
    return f"it is {sizes or 'removed'} (surely={known.surely}, flushed={known.flushed})"


class Blocks:
    """Blocks by key: their content follows from it, so only whether they are there is to be
    known."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._perhaps: set[bytes] = set()
        self._surely: set[bytes] = set()
        self._flushed: set[bytes] = set()

    def stored(self, keys: Iterable[bytes]) -> None:
        keys = set(keys)
        self._perhaps |= keys
        if self._keeps:
            self._surely |= keys

    def perhaps_stored(self, keys: Iterable[bytes]) -> None:
        self._perhaps |= set(keys)

    def removed(self, keys: Iterable[bytes]) -> None:
        gone = set(keys)
        self._perhaps -= gone
        self._surely -= gone
        self._flushed -= gone

    def all_removed(self) -> None:
        self.removed(set(self._perhaps))

    def evicted(self, keys: Iterable[bytes], *, from_dram_only: bool) -> None:
        self._surely -= set(keys) - (self._flushed if from_dram_only else set())

    def flushed(self) -> None:
        self._flushed |= self._surely

    def lost_power(self) -> None:
        self._surely &= self._flushed

    def to_be_flushed(self) -> set[bytes]:
        return set(self._surely)

    def check_prefix(self, keys: Sequence[bytes], num_found: int) -> None:
        at_least = next((i for i, k in enumerate(keys) if k not in self._surely), len(keys))
        at_most = next((i for i, k in enumerate(keys) if k not in self._perhaps), len(keys))
        assert at_least <= num_found <= at_most, (at_least, num_found, at_most)

    def check_reserved(self, key: bytes, existed: bool) -> None:
        """A store of a block was told that it is there already, or got a place."""
        assert not existed or key in self._perhaps
        assert existed or key not in self._surely
