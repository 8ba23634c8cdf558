"""R1 over the client: any mix of calls by several threads in a pool far too small gives the bytes
that were put, or a miss, or an error."""

from __future__ import annotations

import random
import threading

import pytest

from moontide.kvstore import BlockStore, OutOfSpace, PutStatus, StoreClient, StoreError, connect

from ...store_process import StartStore
from ...waiting import wait_until
from .helpers import NAMESPACE, SECONDS, address, block_bytes, client_of, is_value_of, value_of

SIZES = [0, 1, 64, 1000, 4096, 20_000, 70_000, 300_000]
NUM_KEYS = 120
NUM_PROMPTS = 12


class Mixer:
    """One thread's share of the mix."""

    def __init__(self, client: StoreClient, kv: BlockStore, seed: int) -> None:
        self.client = client
        self.kv = kv
        self.rng = random.Random(seed)
        self.problems: list[str] = []
        self.operations = 0
        self.hits = 0

    def run(self, count: int) -> None:
        acts = [
            (self.put, 25),
            (self.get, 30),
            (self.get_into, 8),
            (self.put_many, 6),
            (self.get_many, 6),
            (self.view, 8),
            (self.remove, 6),
            (self.store_prompt, 5),
            (self.load_prompt, 10),
        ]
        choices, weights = zip(*acts, strict=True)
        while self.operations < count:
            act = self.rng.choices(choices, weights)[0]
            try:
                act()
            except OutOfSpace:
                self.operations += 1  # views of all threads pin their client's share
            except StoreError as error:
                self.problems.append(f"{act.__name__}: {error!r}")
                return

    def key(self) -> str:
        return f"k{int(self.rng.triangular(0, NUM_KEYS, 0))}"

    def value(self, key: str) -> bytes:
        return value_of(key, self.rng.choice(SIZES), self.rng.randrange(256))

    def check(self, key: str, data: bytes | None) -> None:
        self.operations += 1
        if data is not None:
            self.hits += 1
            if not is_value_of(key, data):
                self.problems.append(f"{key}: {len(data)} bytes, {data[:16].hex()}…")

    def put(self) -> None:
        key = self.key()
        how = "replace" if self.rng.random() < 0.5 else "keep"
        ttl_s = self.rng.choice([None, None, None, 0.01])
        result = self.client.put(key, self.value(key), if_exists=how, ttl_s=ttl_s)  # type: ignore[arg-type]  # one of the names
        self.operations += 1
        if result.status is PutStatus.FAILED:
            self.problems.append(f"put of {key}: {result}")

    def put_many(self) -> None:
        keys = [self.key() for _ in range(self.rng.randrange(12))]
        self.client.put_many([(key, self.value(key)) for key in keys], if_exists="replace")
        self.operations += len(keys)

    def get(self) -> None:
        key = self.key()
        self.check(key, self.client.get(key))

    def get_into(self) -> None:
        key, buffer = self.key(), bytearray(max(SIZES))
        size = self.client.get_into(key, buffer)
        self.check(key, None if size is None else bytes(buffer[:size]))

    def get_many(self) -> None:
        keys = [self.key() for _ in range(self.rng.randrange(12))]
        for key, data in zip(keys, self.client.get_many(keys), strict=True):
            self.check(key, data)

    def view(self) -> None:
        key = self.key()
        view = self.client.view(key)
        if view is None:
            self.check(key, None)
            return
        with view:
            self.check(key, bytes(view.data))

    def remove(self) -> None:
        self.client.remove_many([self.key() for _ in range(self.rng.randrange(4))])
        self.operations += 1

    def prompt(self) -> list[int]:
        number = self.rng.randrange(NUM_PROMPTS)
        return [number * 1000 + token for token in range(self.rng.randrange(16, 160))]

    def store_prompt(self) -> None:
        tokens = self.prompt()
        keys = self.kv.keys(tokens)
        with self.kv.writer(tokens, timeout_s=SECONDS) as writer:
            for layer in range(self.kv.num_layers):
                num_bytes = self.kv.layer_bytes(layer)
                writer.layer(layer, [block_bytes(key, layer, num_bytes) for key in keys])
                self.operations += len(keys)
            if self.rng.random() < 0.2:
                writer.abort()

    def load_prompt(self) -> None:
        hit = self.kv.lookup(self.prompt(), timeout_s=SECONDS)
        layers = range(self.kv.num_layers)
        buffers = [[bytearray(self.kv.layer_bytes(layer)) for _ in hit.blocks] for layer in layers]
        waiter_result = self.kv.load(hit.ticket, layers, buffers, timeout_s=SECONDS)
        for layer, row in zip(layers, buffers, strict=True):
            for block, (key, buffer) in enumerate(zip(hit.blocks, row, strict=True)):
                self.operations += 1
                if block in waiter_result.failed_blocks:
                    continue
                self.hits += 1
                if buffer != block_bytes(key, layer, len(buffer)):
                    self.problems.append(f"block {key.hex()} layer {layer}")


def mix(start: StartStore, count: int, seed: int) -> None:
    """`count` operations by four threads over three clients and two transports. One client has no
    checksums."""
    daemon = start("--dram", "5MiB", "--segment", "512KiB")
    unsummed = connect(address(daemon), timeout_s=SECONDS, checksums="off")
    with client_of(daemon) as local, client_of(daemon, "tcp") as remote, unsummed as third:
        mixers = []
        for number, client in enumerate((local, local, remote, third)):
            mixers.append(Mixer(client, client.kv(NAMESPACE), seed * 100 + number))
        threads = [threading.Thread(target=mixer.run, args=(count // 4,)) for mixer in mixers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        problems = [problem for mixer in mixers for problem in mixer.problems]
        assert not problems, (seed, problems[:5])
        assert sum(mixer.operations for mixer in mixers) >= count
        assert sum(mixer.hits for mixer in mixers) >= count // 10
        assert {client.counters.corrupt for client in (local, remote, third)} == {0}
        tiers = local.stats()["tiers"]["dram"]
        assert tiers["evictions"] > 0
        assert tiers["corrupt"] == 0
        wait_until(lambda: local.stats()["pins"] == local.stats()["in_flight"] == 0)
        local.clear()
        wait_until(lambda: local.stats()["tiers"]["dram"]["used_bytes"] == 0)
        for mixer in mixers:
            mixer.kv.close()


def test_r01_any_mix_gives_the_bytes_put_or_a_miss(store_daemon: StartStore) -> None:
    mix(store_daemon, 10_000, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(2, 7))
def test_r01_any_mix_for_long(store_daemon: StartStore, seed: int) -> None:
    mix(store_daemon, 100_000, seed)
