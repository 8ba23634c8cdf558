"""Blocks that only another node holds, read through the own store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import BlockStore, Shard, Tier

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until
from ...client.helpers import NAMESPACE, check_prompt, client_of, layers_of, write_prompt

PROMPTS: Iterator[range] = (range(start, start + 100) for start in itertools.count(0, 1000))


def wait_for_hit(kv: BlockStore, tokens: range, num_tokens: int = 96) -> None:
    """Until the peers' events have told of it."""
    wait_until(lambda: kv.lookup(tokens).num_tokens == num_tokens)


def bytes_of(kv: BlockStore, num_blocks: int) -> int:
    return num_blocks * sum(kv.layer_bytes(layer) for layer in range(kv.num_layers))


def test_what_one_node_wrote_the_other_reads_byte_for_byte(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens = next(PROMPTS)
    first, second = stores
    write_prompt(first, tokens)
    wait_for_hit(second, tokens)
    assert check_prompt(second, tokens) == 96
    wait_until(lambda: set(second.lookup(tokens).transports) == {"shm"})  # a replica is kept
    assert set(second.lookup(tokens).tiers) == {Tier.DRAM}


def test_bytes_are_counted_at_both_ends(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens = next(PROMPTS)
    first, second = stores
    num_bytes = bytes_of(first, 6)
    with client_of(nodes[0]) as sender, client_of(nodes[1]) as receiver:
        before = [client.stats()["transports"]["tcp"] for client in (sender, receiver)]
        write_prompt(first, tokens)
        wait_for_hit(second, tokens)
        check_prompt(second, tokens)
        after = [client.stats()["transports"]["tcp"] for client in (sender, receiver)]
    assert after[0]["bytes_out"] - before[0]["bytes_out"] == num_bytes
    assert after[1]["bytes_in"] - before[1]["bytes_in"] == num_bytes
    assert after[1]["slices_failed"] == before[1]["slices_failed"]


def test_a_prefix_is_put_together_from_both_nodes(
    stores: tuple[BlockStore, BlockStore],
) -> None:
    tokens = next(PROMPTS)
    first, second = stores
    write_prompt(second, tokens[:50])  # three blocks here
    write_prompt(first, tokens, first_block=3)  # three more there
    wait_for_hit(second, tokens)
    assert check_prompt(second, tokens) == 96


@pytest.mark.parametrize("readers", [1, 2])
def test_blocks_written_in_two_shards_are_read_at_the_other_node(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore], readers: int
) -> None:
    tokens = next(PROMPTS)
    halves = [Shard(0, (0, 4), (0, 2)), Shard(0, (0, 4), (2, 4))]
    first, second = stores
    content = layers_of(first, first.keys(tokens))
    half = first.layer_bytes(0) // 2
    with client_of(nodes[0]) as writer, client_of(nodes[1]) as reader:
        for number, shard in enumerate(halves):
            with writer.kv(NAMESPACE, shard=shard) as rank, rank.writer(tokens) as stream:
                for layer in range(4):
                    part = slice(number * half, (number + 1) * half)
                    stream.layer(layer, [block[part] for block in content[layer]])
        if readers == 1:
            wait_for_hit(second, tokens)
            assert check_prompt(second, tokens) == 96
            return
        with reader.kv(NAMESPACE, shard=halves[1]) as rank:
            wait_for_hit(rank, tokens)
            with rank.reader(tokens) as stream:
                for layer in range(4):
                    assert stream.layer(layer) == [block[half:] for block in content[layer]]


def test_lookups_at_once_share_one_fill(
    nodes: list[StoreProcess], stores: tuple[BlockStore, BlockStore]
) -> None:
    tokens = next(PROMPTS)
    first, second = stores
    with client_of(nodes[1]) as client:
        before = client.stats()["transports"]["tcp"]["bytes_in"]
        write_prompt(first, tokens)
        wait_until(lambda: _indexed(second, tokens))
        jobs = [second.submit_lookup(tokens, pin_s=5.0, deadline_s=5.0) for _ in range(8)]
        hits = []
        wait_until(lambda: hits.extend(second.poll()) or len(hits) == len(jobs))
        assert {result.hit.num_tokens for result in hits if result.hit} == {96}
        check_prompt(second, tokens)
        for result in hits:
            assert result.hit is not None
            assert result.hit.ticket is not None
            second.release(result.hit.ticket)
        assert client.stats()["transports"]["tcp"]["bytes_in"] - before == bytes_of(second, 6)


def _indexed(kv: BlockStore, tokens: range) -> bool:
    """Whether the peers' events have told of the first block: bring only that one."""
    return kv.lookup(tokens[:17]).num_tokens == 16


def test_copies_that_are_not_to_be_kept_end_with_their_readers(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    tokens = next(PROMPTS)
    nodes = start_nodes(store_daemon, tmp_path, 2, "--remote-copies", "drop")
    with client_of(nodes[0]) as here, client_of(nodes[1]) as there:
        with here.kv(NAMESPACE) as first, there.kv(NAMESPACE) as second:
            write_prompt(first, tokens)
            wait_for_hit(second, tokens)
            for _ in range(2):
                assert check_prompt(second, tokens) == 96
                wait_until(lambda: there.stats()["request_scoped"] == 0)
        assert there.stats()["tiers"]["dram"]["entries"] == 0
        assert here.stats()["tiers"]["dram"]["entries"] == 6
