"""Copies between an engine's pages and canonical blocks.

A canonical block of one layer is `[kv_heads, 2, block_tokens, head_dim]` (K then V), of a latent
layer `[block_tokens, dim]`: see kvstore/layout.py. `block_tokens` is a whole number of pages. All
copies keep every bit, whatever the dtype. Each engine's own layout becomes a strided view by page:

head_major    keys, values [kv_heads, slots, head_dim]             the built-in engine
joined        one tensor [num_pages, kv_heads, page, 2·head_dim]   vLLM on CPU
token_major   keys, values [num_pages, page, kv_heads, head_dim]   NHD: SGLang, FlashInfer
latent        one tensor [num_pages, page, dim]                    MLA
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import paged_reference


@dataclass(frozen=True, slots=True)
class PagedKV:
    """K and V of one layer as strided views `[num_pages, kv_heads, page_tokens, head_dim]`."""

    keys: Tensor
    values: Tensor

    @classmethod
    def head_major(cls, keys: Tensor, values: Tensor, page_tokens: int) -> PagedKV:
        """Of two `[kv_heads, slots, head_dim]`; page p owns slots from `p * page_tokens` on."""
        kv_heads, _, head_dim = keys.shape
        by_page = (kv_heads, -1, page_tokens, head_dim)
        return cls(keys.view(by_page).transpose(0, 1), values.view(by_page).transpose(0, 1))

    @classmethod
    def joined(cls, pages: Tensor) -> PagedKV:
        """Of one `[num_pages, kv_heads, page_tokens, 2 * head_dim]`, K before V in each row."""
        keys, values = pages.chunk(2, dim=-1)
        return cls(keys, values)

    @classmethod
    def token_major(cls, keys: Tensor, values: Tensor) -> PagedKV:
        """Of two `[num_pages, page_tokens, kv_heads, head_dim]`."""
        return cls(keys.transpose(1, 2), values.transpose(1, 2))


def gather(kv: PagedKV, pages: Sequence[int], *, pages_per_block: int = 1) -> Tensor:
    """New canonical blocks `[num_blocks, kv_heads, 2, block_tokens, head_dim]` on the pool's
    device: block i is `pages[i * pages_per_block : (i + 1) * pages_per_block]`. Raises ValueError
    for a page outside the pool or a broken last block."""
    _, kv_heads, page_tokens, head_dim = kv.keys.shape
    num_blocks = _count_blocks(kv.keys, pages, pages_per_block)
    blocks = torch.empty(
        (num_blocks, kv_heads, 2, pages_per_block * page_tokens, head_dim),
        dtype=kv.keys.dtype,
        device=kv.keys.device,
    )
    keys, values = _by_page(blocks, pages_per_block)
    paged_reference.gather(kv.keys, pages, keys)
    paged_reference.gather(kv.values, pages, values)
    return blocks


def scatter(kv: PagedKV, pages: Sequence[int], blocks: Tensor, *, pages_per_block: int = 1) -> None:
    """Writes canonical `blocks` into `pages`, and nothing else. Raises ValueError for a page that
    is outside the pool or listed twice, and for blocks of another shape or dtype."""
    _, kv_heads, page_tokens, head_dim = kv.keys.shape
    num_blocks = _count_blocks(kv.keys, pages, pages_per_block)
    _check_blocks(
        blocks,
        (num_blocks, kv_heads, 2, pages_per_block * page_tokens, head_dim),
        kv.keys.dtype,
    )
    _check_distinct(pages)
    keys, values = _by_page(blocks, pages_per_block)
    paged_reference.scatter(keys, pages, kv.keys)
    paged_reference.scatter(values, pages, kv.values)


def gather_latent(pool: Tensor, pages: Sequence[int], *, pages_per_block: int = 1) -> Tensor:
    """`gather` for a latent pool `[num_pages, page_tokens, dim]`: `[num_blocks, block_tokens,
    dim]`."""
    _, page_tokens, dim = pool.shape
    num_blocks = _count_blocks(pool, pages, pages_per_block)
    blocks = torch.empty(
        (num_blocks, pages_per_block * page_tokens, dim), dtype=pool.dtype, device=pool.device
    )
    paged_reference.gather(pool, pages, _latent_by_page(blocks, pages_per_block))
    return blocks


def scatter_latent(
    pool: Tensor, pages: Sequence[int], blocks: Tensor, *, pages_per_block: int = 1
) -> None:
    """`scatter` for a latent pool `[num_pages, page_tokens, dim]`."""
    _, page_tokens, dim = pool.shape
    num_blocks = _count_blocks(pool, pages, pages_per_block)
    _check_blocks(blocks, (num_blocks, pages_per_block * page_tokens, dim), pool.dtype)
    _check_distinct(pages)
    paged_reference.scatter(_latent_by_page(blocks, pages_per_block), pages, pool)


def _by_page(blocks: Tensor, pages_per_block: int) -> tuple[Tensor, Tensor]:
    """K and V of canonical blocks as views `[num_blocks, pages_per_block, kv_heads, page, dim]`."""
    num_blocks, kv_heads, _, block_tokens, head_dim = blocks.shape
    page_tokens = block_tokens // pages_per_block
    split = blocks.view(num_blocks, kv_heads, 2, pages_per_block, page_tokens, head_dim)
    keys, values = split.permute(2, 0, 3, 1, 4, 5)
    return keys, values


def _latent_by_page(blocks: Tensor, pages_per_block: int) -> Tensor:
    num_blocks, block_tokens, dim = blocks.shape
    return blocks.view(num_blocks, pages_per_block, block_tokens // pages_per_block, dim)


def _count_blocks(pool: Tensor, pages: Sequence[int], pages_per_block: int) -> int:
    num_pages = pool.shape[0]
    for page in pages:
        if not 0 <= page < num_pages:
            raise ValueError(f"page {page} is outside the pool's 0..{num_pages - 1}")
    if pages_per_block < 1 or len(pages) % pages_per_block:
        raise ValueError(f"{len(pages)} pages do not make whole blocks of {pages_per_block}")
    return len(pages) // pages_per_block


def _check_blocks(blocks: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(blocks.shape) != shape or blocks.dtype != dtype or not blocks.is_contiguous():
        raise ValueError(
            f"blocks are {tuple(blocks.shape)} {blocks.dtype} with strides {blocks.stride()}; "
            f"these pages take contiguous {shape} {dtype}"
        )


def _check_distinct(pages: Sequence[int]) -> None:
    if len(set(pages)) != len(pages):
        raise ValueError(f"a page is listed twice in {list(pages)}")
