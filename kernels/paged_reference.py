"""Page copies in plain torch, for any device and dtype: what a Triton version must equal bit for
bit. One strided copy a run of neighbouring pages.

Seat for Triton: `gather` and `scatter` below are the whole interface of a backend; a
`paged_triton` module with the same two functions is picked in paged.py by `pool.device.type`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from .runs import page_runs


def gather(pool: Tensor, pages: Sequence[int], target: Tensor) -> None:
    """Copies `pool[pages[i]]` to `target[i // pages_per_block, i % pages_per_block]`, with `target`
    `[num_blocks, pages_per_block, *page_shape]`, any strides."""
    for part, page, length in _parts(target, pages):
        part.copy_(pool[page : page + length])


def scatter(source: Tensor, pages: Sequence[int], pool: Tensor) -> None:
    """The reverse copy. Pages are distinct."""
    for part, page, length in _parts(source, pages):
        pool[page : page + length].copy_(part)


def _parts(blocks: Tensor, pages: Sequence[int]) -> Iterator[tuple[Tensor, int, int]]:
    """Views of `blocks` that match runs of neighbouring pages. Blocks of one page each form one
    long row of pages; of larger blocks each is a row of its own."""
    num_blocks, pages_per_block = blocks.shape[:2]
    if pages_per_block == 1:
        rows = [(blocks[:, 0], pages)]
    else:
        rows = [
            (blocks[index], pages[index * pages_per_block : (index + 1) * pages_per_block])
            for index in range(num_blocks)
        ]
    for row, row_pages in rows:
        index = 0
        for page, length in page_runs(row_pages):
            yield row[index : index + length], page, length
            index += length
