"""Copies between an engine's pages and canonical blocks. Plain torch: the reference every faster
version must equal bit for bit."""

from __future__ import annotations

from torch import Tensor


def gather_pages(keys: Tensor, values: Tensor, pages: Tensor, page_tokens: int) -> Tensor:
    raise NotImplementedError


def scatter_pages(
    keys: Tensor, values: Tensor, pages: Tensor, page_tokens: int, blocks: Tensor
) -> None:
    raise NotImplementedError
