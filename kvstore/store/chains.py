"""Which entry follows which: intrusive parent and child links, so that a chain of blocks shrinks
from its end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .slot_table import NO_SLOT


class Chains:
    """A forest over slots. A slot's parent is the entry of the block before it, same shard."""

    def __init__(self) -> None:
        self.parent = array("I")
        self._first_child = array("I")
        self._next_sibling = array("I")
        self._previous_sibling = array("I")

    def columns(self) -> tuple[array[int], ...]:
        return self.parent, self._first_child, self._next_sibling, self._previous_sibling

    def link(self, slot: int, parent: int) -> None:
        first = self._first_child[parent]
        self.parent[slot] = parent
        self._next_sibling[slot] = first
        if first:
            self._previous_sibling[first] = slot
        self._first_child[parent] = slot

    def unlink(self, slot: int) -> None:
        """Takes the slot out; its children become roots."""
        for child in tuple(self.children(slot)):
            self.parent[child] = NO_SLOT
            self._next_sibling[child] = self._previous_sibling[child] = NO_SLOT
        self._first_child[slot] = NO_SLOT
        parent = self.parent[slot]
        if not parent:
            return
        before, after = self._previous_sibling[slot], self._next_sibling[slot]
        if before:
            self._next_sibling[before] = after
        else:
            self._first_child[parent] = after
        if after:
            self._previous_sibling[after] = before
        self.parent[slot] = NO_SLOT
        self._next_sibling[slot] = self._previous_sibling[slot] = NO_SLOT

    def children(self, slot: int) -> Iterator[int]:
        child = self._first_child[slot]
        while child:
            yield child
            child = self._next_sibling[child]

    def ancestors(self, slot: int, limit: int) -> Iterator[int]:
        """Nearest first, at most `limit`."""
        parent = self.parent[slot]
        while parent and limit:
            yield parent
            limit -= 1
            parent = self.parent[parent]
