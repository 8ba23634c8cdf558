"""The engine's paged KV pool: one K and one V tensor a layer, addressed by page."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moontide.kernels.paged import PagedKV, gather, scatter

from ..errors import InvalidRequest
from .config import ModelConfig

KV_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class KVTensors:
    """`keys[layer]` and `values[layer]` are `[kv_heads, num_pages * page_tokens, head_dim]`; page p
    owns slots `p * page_tokens … (p + 1) * page_tokens`. Holds no bookkeeping: who owns which page
    is the page pool's business. A stored block is one page, in canonical order
    `[kv_head][k|v][token][head_dim]`."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_pages: int,
        page_tokens: int = 64,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_pages < 1 or page_tokens < 1:
            raise InvalidRequest(
                f"a KV pool needs at least one page of one token; "
                f"got num_pages={num_pages}, page_tokens={page_tokens}"
            )
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self.dtype = dtype
        shape = (config.num_kv_heads, num_pages * page_tokens, config.head_dim)
        layers = range(config.num_layers)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]

    @staticmethod
    def page_bytes(config: ModelConfig, page_tokens: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers, for sizing a pool before it is allocated."""
        token_values = config.num_layers * config.num_kv_heads * config.head_dim * 2
        return token_values * page_tokens * dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of one layer of one page."""
        num_kv_heads, _, head_dim = self.keys[0].shape
        return num_kv_heads * 2 * self.page_tokens * head_dim * self.dtype.itemsize

    def empty_blocks(self, num_blocks: int) -> Tensor:
        """Uninitialised host memory for `num_blocks` canonical blocks of one layer."""
        num_kv_heads, _, head_dim = self.keys[0].shape
        return torch.empty(
            (num_blocks, num_kv_heads, 2, self.page_tokens, head_dim), dtype=self.dtype
        )

    def gather(self, layer: int, pages: Sequence[int]) -> Tensor:
        """Copies one layer of `pages` to new host memory: `[len(pages), kv_heads, 2, page_tokens,
        head_dim]`."""
        return gather(self._by_page(layer), pages).cpu()

    def scatter(self, layer: int, pages: Sequence[int], blocks: Tensor) -> None:
        """Writes canonical `blocks` (as `gather` gives them) into `pages` of one layer; they may
        be reused on return."""
        scatter(self._by_page(layer), pages, blocks.to(self.keys[layer].device))

    def _by_page(self, layer: int) -> PagedKV:
        return PagedKV.head_major(self.keys[layer], self.values[layer], self.page_tokens)


def block_buffers(blocks: Tensor) -> list[memoryview]:
    """One flat, writable byte view a block over `blocks` (canonical, contiguous, on the host; any
    dtype). The views share the tensor's memory and keep it alive."""
    rows = blocks.view(torch.uint8).numpy().reshape(len(blocks), -1)
    return [row.data for row in rows]
