"""Parts of a block: shards of several ranks, pipelines, and groups of layers."""

from __future__ import annotations

import os

import pytest

from moontide.kvstore import (
    BlockStore,
    Group,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Namespace,
    Shard,
    StoreClient,
)

from .helpers import NAMESPACE, TOKENS, check_prompt, layers_of, write_prompt


def test_r05_a_prefix_ends_at_the_first_block_with_a_part_missing(
    client: StoreClient, kv: BlockStore
) -> None:
    halves = [Shard(0, (0, 4), (0, 2)), Shard(0, (0, 4), (2, 4))]
    with (
        client.kv(NAMESPACE, shard=halves) as split,
        client.kv(NAMESPACE, shard=halves[0]) as first,
        client.kv(NAMESPACE, shard=halves[1]) as second,
    ):
        write_prompt(first, TOKENS)
        write_prompt(second, TOKENS[:48])
        write_prompt(second, TOKENS, first_block=4)
        assert kv.lookup(TOKENS).num_tokens == split.lookup(TOKENS).num_tokens == 48
        assert first.lookup(TOKENS).num_tokens == 96  # this part is complete
        assert second.lookup(TOKENS).num_tokens == 48
        write_prompt(second, TOKENS[:64], first_block=3)
        assert kv.lookup(TOKENS).num_tokens == split.lookup(TOKENS).num_tokens == 96


@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (2, 1), (1, 4), (4, 2), (2, 4)])
def test_blocks_written_at_one_tp_are_read_at_another(
    client: StoreClient, writers: int, readers: int
) -> None:
    def shards(count: int) -> list[Shard]:
        step = 4 // count
        return [Shard(0, (0, 4), (start, start + step)) for start in range(0, 4, step)]

    whole = client.kv(NAMESPACE)
    head_bytes = whole.layer_bytes(0) // 4
    content = layers_of(whole, whole.keys(TOKENS))

    def part(shard: Shard, layer: int) -> list[bytes]:
        low, high = (head * head_bytes for head in shard.kv_heads)
        return [block[low:high] for block in content[layer]]

    for shard in shards(writers):
        with client.kv(NAMESPACE, shard=shard) as rank, rank.writer(TOKENS) as writer:
            for layer in range(4):
                writer.layer(layer, part(shard, layer))
    for shard in shards(readers):
        with client.kv(NAMESPACE, shard=shard) as rank, rank.reader(TOKENS) as reader:
            assert reader.num_tokens == 96
            for layer in range(4):
                assert reader.layer(layer) == part(shard, layer)
    whole.close()


def test_ranks_of_a_pipeline_store_their_own_layers(client: StoreClient, kv: BlockStore) -> None:
    for start in (0, 2):
        with client.kv(NAMESPACE, shard=Shard(0, (start, start + 2), (0, 4))) as rank:
            assert rank.num_layers == 2
            write_prompt(rank, TOKENS, layer_offset=start)
    assert check_prompt(kv, TOKENS) == 96


def test_two_groups_are_two_parts_of_a_block(client: StoreClient) -> None:
    layout = KVLayout(
        (
            Group("full", 2, 4, 8, "float16"),
            Group("window", 3, 2, 16, "float16", v_head_dim=8, window_tokens=32),
            Group("latent", 1, 1, 24, "bfloat16"),
        )
    )
    namespace = Namespace(weights_id="2", layout=layout, tokenizer_digest="t", block_tokens=16)
    with client.kv(namespace) as kv:
        assert kv.num_layers == 6
        assert [kv.layer_bytes(layer) for layer in range(6)] == [2048] * 2 + [1536] * 3 + [768]
        write_prompt(kv, TOKENS)
        assert check_prompt(kv, TOKENS) == 96
    with client.kv(namespace, shard=layout.whole()[1]) as window:
        assert window.num_layers == 3
        assert window.lookup(TOKENS).num_tokens == 96


def test_a_shard_outside_the_layout_is_refused(client: StoreClient) -> None:
    """And costs no descriptor."""
    client.kv(NAMESPACE).close()  # from here on it has all that its block stores share
    before = os.listdir("/proc/self/fd")
    with pytest.raises(LayoutMismatch, match="4 heads"):
        client.kv(NAMESPACE, shard=Shard(0, (0, 4), (0, 5)))
    with pytest.raises(InvalidRequest, match="empty"):
        client.kv(NAMESPACE, shard=())
    assert os.listdir("/proc/self/fd") == before
