"""Which entry follows which: intrusive parent and child links, so that a chain of blocks shrinks
from its end."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .slot_table import NO_SLOT

MAX_DEPTH = 0xFFFF


class Chains:
    """A forest over slots. A slot's parent is the entry of the block before it, same shard; its
    depth the number of blocks before it, at most MAX_DEPTH, also when they have gone."""

    def __init__(self) -> None:
        self.parent = array("I")
        self.depth = array("H")
        self._first_child = array("I")
        self._next_sibling = array("I")
        self._previous_sibling = array("I")

    def columns(self) -> tuple[array[int], ...]:
        return (
            self.parent,
            self.depth,
            self._first_child,
            self._next_sibling,
            self._previous_sibling,
        )

    def is_end(self, slot: int) -> bool:
        """Whether it follows something and nothing follows it."""
        return self.parent[slot] != NO_SLOT and self._first_child[slot] == NO_SLOT

    def are_ends(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        parents, children = (
            np.frombuffer(column, np.uint32)[slots] for column in (self.parent, self._first_child)
        )
        ends: NDArray[np.bool_] = (parents != NO_SLOT) & (children == NO_SLOT)
        return ends

    def link(self, slot: int, parent: int) -> None:
        first = self._first_child[parent]
        self.parent[slot] = parent
        self.depth[slot] = min(self.depth[parent] + 1, MAX_DEPTH)
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
        self.depth[slot] = 0
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
