"""The decoder's own promises: chunking, paging, batching, dtype and hooks change nothing."""

from __future__ import annotations

import pytest
import torch

from moontide.engine_adapters.builtin.model import (
    KVTensors,
    LoadedModel,
    SequenceChunk,
    block_buffers,
)

from .tiny_models import PAGE_TOKENS, make_pool, pages_for, random_tokens, run_chunks

GUARD = 1e30


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "ends", [(1, 150), (16, 32, 150), (7, 8, 9, 63, 149, 150), (149, 150), tuple(range(1, 151))]
)
def test_chunking_does_not_change_the_logits(
    tiny: LoadedModel, token_ids: list[int], ends: tuple[int, ...]
) -> None:
    whole = run_chunks(tiny, token_ids, [150])
    assert_same(run_chunks(tiny, token_ids, ends)[-1:], whole)


@pytest.mark.parametrize("ends", [(150,), (70, 149, 150)])
def test_scattered_pages_equal_neighbouring_ones(
    tiny: LoadedModel, token_ids: list[int], ends: tuple[int, ...]
) -> None:
    side_by_side = run_chunks(tiny, token_ids, ends)
    for pages in ([38, 3, 4, 20, 19, 0, 7, 8, 9, 1], list(range(9, -1, -1))):
        assert_same(run_chunks(tiny, token_ids, ends, pages=pages), side_by_side)


def test_a_batch_of_prefill_and_decode_equals_each_alone(tiny: LoadedModel) -> None:
    prompts = [random_tokens(count, seed=count) for count in (1, 16, 33, 90)]
    kv = make_pool(tiny)
    pages = [[0], [1], [2, 9, 4], [10, 11, 5, 6, 7, 8]]
    starts = [0, 15, 20, 0]
    for prompt, start, own in zip(prompts, starts, pages, strict=True):
        if start:
            tiny.decoder.forward([SequenceChunk(prompt[:start], 0, own)], kv)
    batch = tiny.decoder.forward(
        [
            SequenceChunk(prompt[start:], start, own)
            for prompt, start, own in zip(prompts, starts, pages, strict=True)
        ],
        kv,
    )
    alone = [run_chunks(tiny, prompt, [len(prompt)]) for prompt in prompts]
    assert_same(batch, torch.cat(alone))


def test_only_the_new_tokens_slots_are_written(tiny: LoadedModel, token_ids: list[int]) -> None:
    kv = make_pool(tiny)
    for pool in (*kv.keys, *kv.values):
        pool.fill_(GUARD)
    pages = [5, 6, 2]
    run_chunks(tiny, token_ids[:40], [40], pages=pages, kv=kv)
    written = {5 * PAGE_TOKENS + offset for offset in range(32)}
    written |= {2 * PAGE_TOKENS + offset for offset in range(8)}
    for pool in (*kv.keys, *kv.values):
        touched = (pool != GUARD).any(dim=2).any(dim=0).nonzero().flatten().tolist()
        assert set(touched) == written


def test_blocks_moved_to_other_pages_give_the_same_logits(
    tiny: LoadedModel, token_ids: list[int]
) -> None:
    cold, kv = make_pool(tiny), make_pool(tiny)
    expected = run_chunks(tiny, token_ids, [150], kv=cold)
    source, target = list(range(9)), [30, 31, 12, 3, 5, 6, 7, 22, 21]
    for layer in range(tiny.config.num_layers):
        kv.scatter(layer, target, cold.gather(layer, source))
    tail = SequenceChunk(token_ids[144:], 144, [*target, 39])
    assert_same(tiny.decoder.forward([tail], kv), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_pool_gives_the_same_logits_cold_and_reused(
    tiny: LoadedModel, token_ids: list[int], dtype: torch.dtype
) -> None:
    whole = run_chunks(tiny, token_ids, [150], kv=make_pool(tiny, dtype=dtype))
    chunked = run_chunks(tiny, token_ids, [16, 149, 150], kv=make_pool(tiny, dtype=dtype))
    torch.testing.assert_close(chunked[-1:], whole, rtol=0, atol=0.05)
    exact = run_chunks(tiny, token_ids, [150])
    assert (whole - exact).abs().max() < 0.5


class RecordingHook:
    """Notes the order of calls and whether K of the new tokens had been written."""

    def __init__(self, kv: KVTensors, slot: int) -> None:
        self.kv, self.slot = kv, slot
        self.calls: list[tuple[str, int, bool]] = []

    def before_layer(self, layer: int) -> None:
        self.calls.append(("before", layer, self._written(layer)))

    def after_layer(self, layer: int) -> None:
        self.calls.append(("after", layer, self._written(layer)))

    def _written(self, layer: int) -> bool:
        return bool(self.kv.keys[layer][:, self.slot].abs().sum() > 0)


def test_r07_a_layer_is_reported_only_when_it_is_in_the_pool(
    tiny: LoadedModel, token_ids: list[int]
) -> None:
    kv = make_pool(tiny)
    hook = RecordingHook(kv, slot=149)
    tiny.decoder.forward([SequenceChunk(token_ids, 0, pages_for(token_ids))], kv, hook)
    expected = []
    for layer in range(tiny.config.num_layers):
        expected += [("before", layer, False), ("after", layer, True)]
    assert hook.calls == expected


class LateLoad:
    """Fills the cached pages of a layer only when the decoder asks for that layer."""

    def __init__(self, source: KVTensors, target: KVTensors, pages: list[int]) -> None:
        self.source, self.target, self.pages = source, target, pages

    def before_layer(self, layer: int) -> None:
        blocks = self.source.gather(layer, self.pages)
        self.target.scatter(layer, self.pages, blocks)

    def after_layer(self, layer: int) -> None:
        pass


@pytest.mark.parametrize("start", [144, 143])
def test_cached_layers_may_arrive_as_late_as_before_layer(
    tiny: LoadedModel, token_ids: list[int], start: int
) -> None:
    cold, late = make_pool(tiny), make_pool(tiny)
    pages = list(pages_for(token_ids))
    expected = run_chunks(tiny, token_ids, [150], kv=cold)
    hook = LateLoad(cold, late, pages[:9])
    tail = SequenceChunk(token_ids[start:], start, pages)
    assert_same(tiny.decoder.forward([tail], late, hook), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_block_buffers_are_the_blocks_own_writable_bytes(
    tiny: LoadedModel, dtype: torch.dtype
) -> None:
    kv = make_pool(tiny, dtype=dtype)
    blocks = kv.empty_blocks(3)
    buffers = block_buffers(blocks)
    one = tiny.config.num_kv_heads * 2 * PAGE_TOKENS * tiny.config.head_dim * dtype.itemsize
    assert [buffer.nbytes for buffer in buffers] == [one] * 3
    assert one * tiny.config.num_layers == KVTensors.page_bytes(tiny.config, PAGE_TOKENS, dtype)
    for index, buffer in enumerate(buffers):
        buffer[:] = bytes([index]) * one
    kv.scatter(0, [7, 8, 4], blocks)
    assert bytes(block_buffers(kv.gather(0, [4]))[0]) == bytes([2]) * one
