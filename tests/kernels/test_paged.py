"""Page copies against a slow model that moves one element at a time, with guards around."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from moontide.kernels.paged import (
    PagedKV,
    gather,
    gather_latent,
    scatter,
    scatter_latent,
)
from moontide.kernels.runs import page_runs

NUM_PAGES, HEADS, PAGE, DIM = 12, 3, 4, 5
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Every bit pattern, NaN payloads included."""
    generator = torch.Generator().manual_seed(sum(shape))
    count = torch.Size(shape).numel() * dtype.itemsize
    return (
        torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
        .view(dtype)
        .view(shape)
    )


def head_major(dtype: torch.dtype) -> tuple[PagedKV, list[Tensor]]:
    tensors = [random_bits((HEADS, NUM_PAGES * PAGE, DIM), dtype) for _ in range(2)]
    return PagedKV.head_major(*tensors, PAGE), tensors


def joined(dtype: torch.dtype) -> tuple[PagedKV, list[Tensor]]:
    tensor = random_bits((NUM_PAGES, HEADS, PAGE, 2 * DIM), dtype)
    return PagedKV.joined(tensor), [tensor]


def token_major(dtype: torch.dtype) -> tuple[PagedKV, list[Tensor]]:
    tensors = [random_bits((NUM_PAGES, PAGE, HEADS, DIM), dtype) for _ in range(2)]
    return PagedKV.token_major(*tensors), tensors


MakePool = Callable[[torch.dtype], tuple[PagedKV, list[Tensor]]]
LAYOUTS: list[MakePool] = [head_major, joined, token_major]


def element(
    kind: MakePool, tensors: list[Tensor], which: int, page: int, head: int, token: int
) -> Tensor:
    """K (0) or V (1) of one token of one head, straight from the layout's definition."""
    if kind is head_major:
        return tensors[which][head, page * PAGE + token]
    if kind is joined:
        return tensors[0][page, head, token, which * DIM : (which + 1) * DIM]
    return tensors[which][page, token, head]


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


page_lists = st.sampled_from([1, 2, 3]).flatmap(
    lambda ratio: st.tuples(
        st.just(ratio),
        st.lists(st.integers(0, NUM_PAGES - 1), unique=True).map(
            lambda pages: pages[: len(pages) // ratio * ratio]
        ),
    )
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(case=page_lists)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_gather_takes_exactly_the_pages_asked_for(
    layout: MakePool, dtype: torch.dtype, case: tuple[int, list[int]]
) -> None:
    ratio, pages = case
    kv, tensors = layout(dtype)
    blocks = gather(kv, pages, pages_per_block=ratio)
    assert blocks.shape == (len(pages) // ratio, HEADS, 2, ratio * PAGE, DIM)
    for index, page in enumerate(pages):
        block, part = divmod(index, ratio)
        for which in range(2):
            for head in range(HEADS):
                for token in range(PAGE):
                    ours = blocks[block, head, which, part * PAGE + token]
                    assert bits(ours) == bits(element(layout, tensors, which, page, head, token))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@given(case=page_lists)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_scatter_writes_the_pages_and_nothing_else(
    layout: MakePool, dtype: torch.dtype, case: tuple[int, list[int]]
) -> None:
    ratio, pages = case
    kv, tensors = layout(dtype)
    before = [tensor.clone() for tensor in tensors]
    blocks = random_bits((len(pages) // ratio, HEADS, 2, ratio * PAGE, DIM), dtype)
    scatter(kv, pages, blocks, pages_per_block=ratio)
    assert bits(gather(kv, pages, pages_per_block=ratio)) == bits(blocks)
    others = [page for page in range(NUM_PAGES) if page not in pages]
    for page in others:
        for which in range(2):
            for head in range(HEADS):
                for token in range(PAGE):
                    place = (which, page, head, token)
                    assert bits(element(layout, tensors, *place)) == bits(
                        element(layout, before, *place)
                    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(case=page_lists)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_latent_pages_go_out_and_back_in(dtype: torch.dtype, case: tuple[int, list[int]]) -> None:
    ratio, pages = case
    pool = random_bits((NUM_PAGES, PAGE, DIM), dtype)
    other = torch.zeros_like(pool)
    blocks = gather_latent(pool, pages, pages_per_block=ratio)
    assert bits(blocks) == b"".join(bits(pool[page]) for page in pages)
    scatter_latent(other, pages, blocks, pages_per_block=ratio)
    for page in range(NUM_PAGES):
        assert (
            bits(other[page]) == bits(pool[page]) if page in pages else not any(bits(other[page]))
        )


def test_one_block_is_the_canonical_order_of_the_stored_layout() -> None:
    """[kv_head][k|v][token][head_dim], spelled out on numbers that encode their place."""
    shape = (HEADS, NUM_PAGES * PAGE, DIM)
    keys = torch.arange(torch.Size(shape).numel()).view(shape)
    blocks = gather(PagedKV.head_major(keys, -keys, PAGE), [5])
    assert blocks[0, 2, 0, 3, 4] == keys[2, 5 * PAGE + 3, 4]
    assert blocks[0, 1, 1, 0, 2] == -keys[1, 5 * PAGE, 2]


@pytest.mark.parametrize(
    ("pages", "ratio", "message"),
    [
        ([0, NUM_PAGES], 1, "page 12 is outside the pool's 0..11"),
        ([-1], 1, "page -1 is outside"),
        ([0, 1, 2], 2, "3 pages do not make whole blocks of 2"),
    ],
)
def test_bad_pages_are_refused(pages: list[int], ratio: int, message: str) -> None:
    kv, _ = head_major(torch.float32)
    with pytest.raises(ValueError, match=message):
        gather(kv, pages, pages_per_block=ratio)
    with pytest.raises(ValueError, match=message):
        scatter(kv, pages, torch.empty(0), pages_per_block=ratio)


def test_scatter_refuses_wrong_blocks_and_repeated_pages() -> None:
    kv, tensors = head_major(torch.float32)
    before = [tensor.clone() for tensor in tensors]
    blocks = gather(kv, [1, 2])
    with pytest.raises(ValueError, match="these pages take"):
        scatter(kv, [1], blocks)
    with pytest.raises(ValueError, match="these pages take"):
        scatter(kv, [1, 2], blocks.to(torch.float16))
    with pytest.raises(ValueError, match="these pages take contiguous"):
        scatter(kv, [1, 2], blocks.transpose(1, 1).transpose(3, 4).contiguous().transpose(3, 4))
    with pytest.raises(ValueError, match="listed twice"):
        scatter(kv, [3, 3], blocks)
    assert [bits(tensor) for tensor in tensors] == [bits(tensor) for tensor in before]


@given(pages=st.lists(st.integers(0, 20)))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_runs_spell_the_pages_and_are_maximal(pages: list[int]) -> None:
    runs = list(page_runs(pages))
    assert [page for first, length in runs for page in range(first, first + length)] == pages
    assert all(one[0] + one[1] != other[0] for one, other in itertools.pairwise(runs))
