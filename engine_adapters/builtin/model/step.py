"""What one forward step is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """New tokens of one sequence for one forward step.

    `token_ids` take positions `start, start + 1, …`; everything before `start` is in the pool, or
    will be when the hook's `before_layer` returns. `pages` are the sequence's pages in order and
    cover at least `start + len(token_ids)` tokens. No page that one chunk writes to is listed by
    another chunk of the step."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]


class LayerHook(Protocol):
    """Called in the forward pass's thread, layers in order. Whatever it raises ends the pass and
    leaves the slots of the step's new tokens undefined; nothing else is touched."""

    def before_layer(self, layer: int) -> None:
        """Before this layer writes or reads the pool: its cached positions must be there on
        return."""

    def after_layer(self, layer: int) -> None:
        """K and V of every new token of this layer are in the pool."""
