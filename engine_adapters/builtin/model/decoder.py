"""The Llama-family decoder over a paged KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .config import ModelConfig
from .kv_tensors import KVTensors


@dataclass(frozen=True, slots=True)
class SequenceChunk:
    """New tokens of one sequence for one forward step.

    `token_ids` take positions `start, start + 1, …`; everything before `start` is already in the
    pool. `pages` are the sequence's pages in order and cover at least `start + len(token_ids)`
    tokens. Two chunks of one step never share a page that either writes."""

    token_ids: Sequence[int]
    start: int
    pages: Sequence[int]


class LayerHook(Protocol):
    """Called in the forward pass's thread, layers in order. Whatever it raises ends the pass and
    leaves the pool's slots at and after each chunk's `start` undefined."""

    def before_layer(self, layer: int) -> None:
        """Before this layer reads the pool: a cached layer must be there on return."""

    def after_layer(self, layer: int) -> None:
        """K and V of every new token of this layer are in the pool."""


class Decoder:
    """Pure function of weights, tokens and pool content; keeps no state between calls. Not
    re-entrant on one `KVTensors`."""

    config: ModelConfig

    def forward(
        self,
        chunks: Sequence[SequenceChunk],
        kv: KVTensors,
        hook: LayerHook | None = None,
    ) -> Tensor:
        """Runs all chunks as one batch, writes their K and V into `kv` and returns float32 logits
        `[len(chunks), vocab_size]` of each chunk's last token."""
        raise NotImplementedError
