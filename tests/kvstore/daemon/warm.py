"""A store with a disk and things in it, as the tests of the NVMe tier need one."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

from moontide.kvstore import BlockStore, Group, KVLayout, Namespace, StoreClient, connect

from ...store_process import StoreProcess
from ...waiting import wait_until
from .admin import Admin

NVME = ("--nvme", "256MiB")
NUM_LAYERS = 4
BLOCK_TOKENS = 16
NAMESPACE = Namespace(
    weights_id="warm",
    layout=KVLayout((Group("full", NUM_LAYERS, 2, 16, "float16"),)),
    tokenizer_digest="t",
    block_tokens=BLOCK_TOKENS,
)
LAYER_BYTES = BLOCK_TOKENS * 2 * 2 * 16 * 2
BLOCK_BYTES = NUM_LAYERS * LAYER_BYTES
ALICE = dataclasses.replace(NAMESPACE, salt="alice-secret-salt")
BOB = dataclasses.replace(NAMESPACE, salt="bob-secret-salt")


def values(count: int, *, seed: int = 1, largest: int = 20_000) -> dict[str, bytes]:
    """String entries of many sizes, tiny ones among them."""
    rng = random.Random(seed)
    return {
        f"{seed}/{index}": rng.randbytes(rng.choice([1, 100, 5000, largest]))
        for index in range(count)
    }


def prompt(num_blocks: int, *, seed: int = 0) -> list[int]:
    return [seed * 100_000 + index for index in range(num_blocks * BLOCK_TOKENS)]


def layer_of(block: int, layer: int) -> bytes:
    return hashlib.blake2b(bytes([block % 256, layer])).digest() * (LAYER_BYTES // 64)


@contextmanager
def client_of(node: StoreProcess) -> Iterator[StoreClient]:
    client = connect(f"unix:{node.socket}", timeout_s=20.0)
    try:
        yield client
    finally:
        client.close()


def put_all(client: StoreClient, entries: dict[str, bytes]) -> None:
    client.put_many(list(entries.items()))


def write_blocks(
    client: StoreClient, tokens: list[int], namespace: Namespace = NAMESPACE, *, replicas: int = 1
) -> None:
    count = len(tokens) // BLOCK_TOKENS
    with client.kv(namespace, replicas=replicas).writer(tokens) as writer:
        for layer in range(NUM_LAYERS):
            writer.layer(layer, [layer_of(block, layer) for block in range(count)])


def read_blocks(client: StoreClient, tokens: list[int]) -> list[list[bytes]]:
    """Each layer of each block that hits."""
    with client.kv(NAMESPACE).reader(tokens) as reader:
        if not reader.num_tokens:
            return []
        return [[bytes(data) for data in reader.layer(layer)] for layer in range(NUM_LAYERS)]


def hits(store: BlockStore, tokens: list[int]) -> int:
    """Tokens of the longest prefix."""
    with store.reader(tokens) as reader:
        return reader.num_tokens


def uses_of(client: StoreClient) -> list[int]:
    """Hits, misses and bytes read, of its store's DRAM."""
    dram = client.stats()["tiers"]["dram"]
    return [dram[name] for name in ("hits", "misses", "bytes_out")]


def blocks_digest(client: StoreClient, tokens: list[int]) -> str:
    return hashlib.sha256(repr(read_blocks(client, tokens)).encode()).hexdigest()


def admin_of(node: StoreProcess) -> Admin:
    return Admin(node.admin, node.token)


def wait_flushed(node: StoreProcess, entries: int) -> None:
    """So many lie on disk, and DRAM knows of those that it has too: until then their bytes are held
    for the copy, and stay whoever evicts them."""
    admin = admin_of(node)

    def are_flushed() -> bool:
        tiers = admin.stats()["tiers"]
        known = min(entries, tiers["dram"]["entries"])
        return bool(tiers["nvme"]["flushed"] >= entries and tiers["dram"]["flushed"] >= known)

    wait_until(are_flushed, seconds=20.0)


def check_at_rest(node: StoreProcess) -> None:
    """Nothing is on its way, and every account agrees."""
    admin = admin_of(node)
    wait_until(lambda: admin.stats()["in_flight"] == 0 and admin.stats()["pins"] == 0)
    admin.check_at_rest()
    assert admin.stats()["fills"] == 0
