"""A client process of the soak: `python churner.py WORLD ADDRESS TOKEN NUMBER LIFE SEED` does
whatever a client can do until SIGTERM, checks every byte that it gets, and prints a line of JSON
for each problem and one at the end. Its WORLD is a store `alone` or a `cluster`.

Each client has keys that only it writes, and reads everyone's. Of its own it knows what may be
there: the version put last, or a miss. Of others' it knows that versions only grow, unless a daemon
was killed between a value's being seen and its put's being answered."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.kvstore.client.helpers import block_bytes
from tests.kvstore.model.values import value_of, version_of

from moontide.kvstore import (
    Busy,
    Group,
    KVLayout,
    Namespace,
    OutOfSpace,
    PrefixHit,
    PutStatus,
    StoreClient,
    StoreTimeout,
    StoreUnavailable,
    View,
    connect,
)

NUM_CLIENTS = 8
KEYS_EACH = 400
NUM_PROMPTS = 40
PROMPT_BLOCKS = 12
BLOCK_TOKENS = 16
LARGEST = 4 << 20
TYPICAL = [1, 15, 100, 1000, 4096, 5000, 16_000, 65_536, 70_000, 200_000, 300_000]
LARGE = [1 << 20, 2 << 20, LARGEST - 1, LARGEST]
TINY = 16  # smaller values do not tell their version
TIMEOUT_SECONDS = 30.0
MAX_UNKNOWN = 32
"""Of one key, puts in a row of which nobody knows whether they were done: there are some while a
store is away."""
LAYOUT = KVLayout((Group("full", 4, 4, 32, "float16"),))
NAMESPACE = Namespace(weights_id="soak", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)


@dataclass(slots=True)
class Own:
    """What may lie under a key of ours. `values` None: we do not know, an earlier life wrote."""

    values: list[bytes] | None = None
    over_at: float = float("inf")  # surely gone then


class Churner:
    REFUSALS: frozenset[PutStatus] = frozenset({PutStatus.FULL})

    def __init__(self, client: StoreClient, number: int, life: int, seed: int) -> None:
        self.client = client
        self.kv = client.kv(NAMESPACE)
        self.number = number
        self.rng = random.Random(seed)
        self.stopped = False
        self.operations = self.hits = self.lost_calls = self.full = 0
        self._life = life
        self._versions = [life << 14] * KEYS_EACH
        self._own = [Own(None if life else []) for _ in range(KEYS_EACH)]
        self._seen: dict[int, int] = {}
        self._instance = str(client.stats()["instance"])
        self._views: deque[tuple[View, int, bytes, str]] = deque()
        self._hits: deque[PrefixHit] = deque()

    def acts(self) -> list[tuple[Callable[[], None], int]]:
        """What it does, how often."""
        return [
            (self.put, 16),
            (self.put_many, 6),
            (self.put_if_absent, 3),
            (self.put_for_a_while, 4),
            (self.remove, 4),
            (self.get, 14),
            (self.get_into, 5),
            (self.get_many, 8),
            (self.exists, 3),
            (self.view, 6),
            (self.release_view, 6),
            (self.store_prompt, 3),
            (self.find_prompt, 6),
            (self.use_prompt, 6),
        ]

    def run(self) -> None:
        choices, weights = zip(*self.acts(), strict=True)
        is_told = False
        while not self.stopped:
            self.operations += 1
            try:
                self.rng.choices(choices, weights)[0]()
            except (StoreUnavailable, StoreTimeout, Busy):  # Busy: what a killed store was changing
                self.lost_calls += 1
            except OutOfSpace:
                self.full += 1
                self.let_go()
            if self.hits and not is_told:
                tell(hit=self._life)
                is_told = True
        self.let_go()

    def let_go(self) -> None:
        while self._views:
            self.release_view()
        self._hits.clear()  # their tickets end by themselves

    # -- writing --------------------------------------------------------------------------

    def mine(self) -> int:
        return int(self.rng.triangular(0, KEYS_EACH, 0))

    def key(self, index: int) -> int:
        return self.number * KEYS_EACH + index

    def next_value(self, index: int) -> bytes:
        self._versions[index] += 1
        size = self.rng.choice(LARGE if self.rng.random() < 0.02 else TYPICAL)
        return value_of(self.key(index), self._versions[index], size)

    def put(self) -> None:
        index = self.mine()
        self._put_all([(index, self.next_value(index))])

    def put_many(self) -> None:
        indexes = {self.mine() for _ in range(self.rng.randrange(1, 16))}
        self._put_all([(index, self.next_value(index)) for index in indexes])

    def _put_all(self, items: list[tuple[int, bytes]]) -> None:
        for index, value in items:  # as long as we do not know: either
            own = self._own[index]
            if own.values is not None:
                own.values = [*own.values[-MAX_UNKNOWN:], value]
            own.over_at = float("inf")
        results = self.client.put_many(
            [(str(self.key(index)), value) for index, value in items],
            if_exists="replace",
            soft_pin=self.rng.random() < 0.05,
        )
        for (index, value), result in zip(items, results, strict=True):
            own = self._own[index]
            if result.status is PutStatus.STORED:
                own.values = [value]
            elif result.status not in self.REFUSALS:
                self.problem("put", index, str(result))
            elif own.values is not None:
                own.values.remove(value)

    def put_if_absent(self) -> None:
        index = self.mine()
        own, value = self._own[index], self.next_value(index)
        before, own.over_at = own.values, float("inf")
        own.values = None if before is None else [*before, value]
        result = self.client.put(str(self.key(index)), value)
        own.values = [value] if result.status is PutStatus.STORED else before

    def put_for_a_while(self) -> None:
        index, ttl_s = self.mine(), self.rng.choice([0.05, 0.5, 5.0])
        own, value = self._own[index], self.next_value(index)
        own.values = None if own.values is None else [*own.values, value]
        own.over_at = float("inf")
        result = self.client.put(str(self.key(index)), value, if_exists="replace", ttl_s=ttl_s)
        if result.status is PutStatus.STORED:
            own.values, own.over_at = [value], time.monotonic() + ttl_s

    def remove(self) -> None:
        indexes = [self.mine() for _ in range(self.rng.randrange(1, 5))]
        self.client.remove_many([str(self.key(index)) for index in indexes])
        for index in indexes:
            self._own[index] = Own([])

    # -- reading --------------------------------------------------------------------------

    def any_key(self) -> int:
        if self.rng.random() < 0.3:
            return self.key(self.mine())
        return self.rng.randrange(NUM_CLIENTS) * KEYS_EACH + self.mine()

    def get(self) -> None:
        key, asked = self.any_key(), time.monotonic()
        self.check(key, self.client.get(str(key)), asked)

    def get_into(self) -> None:
        key, asked, buffer = self.any_key(), time.monotonic(), bytearray(LARGEST)
        size = self.client.get_into(str(key), buffer)
        self.check(key, None if size is None else bytes(buffer[:size]), asked)

    def get_many(self) -> None:
        keys, asked = [self.any_key() for _ in range(self.rng.randrange(24))], time.monotonic()
        for key, data in zip(keys, self.client.get_many(list(map(str, keys))), strict=True):
            self.check(key, data, asked)

    def exists(self) -> None:
        index, asked = self.mine(), time.monotonic()
        own = self._own[index]
        there = self.client.exists(str(self.key(index)))
        if there and (own.values == [] or asked > own.over_at):
            self.problem("exists", index, f"removed, or over since {own.over_at}")

    def view(self) -> None:
        key, asked = self.any_key(), time.monotonic()
        view = self.client.view(str(key))
        data = None if view is None else bytes(view.data)
        self.check(key, data, asked)
        if view is not None and data is not None:
            self._views.append((view, key, data, self._instance))
        while len(self._views) > 8:
            self.release_view()

    def release_view(self) -> None:
        if not self._views:
            return
        view, key, data, instance = self._views.popleft()
        same = view.data == data
        if view.valid() and not same:
            self.problem("view", key, "its bytes changed")
        elif not view.valid() and not self.was_restarted() and instance == self._instance:
            self.problem("view", key, "lost, and the daemon is the same")
        view.release()

    def check(self, key: int, data: bytes | None, asked: float) -> None:
        if data is None:
            return
        self.hits += 1
        version = version_of(key, data)
        if version is None:
            self.problem("bytes", key, f"{len(data)} bytes {data[:32].hex()}")
        elif key // KEYS_EACH == self.number:
            self.check_own(key % KEYS_EACH, data, asked)
        elif len(data) >= TINY:
            seen = self._seen.get(key, 0)
            if version < seen and not self.was_restarted():
                self.problem("stale", key, f"version {version}, was {seen}")
            self._seen[key] = version

    def check_own(self, index: int, data: bytes, asked: float) -> None:
        own = self._own[index]
        if own.values is not None and data not in own.values:
            versions = [version_of(self.key(index), value) for value in own.values]
            got = version_of(self.key(index), data)
            self.problem("own", self.key(index), f"version {got}, may be {versions}")
        elif asked > own.over_at:
            self.problem("ttl", self.key(index), f"got {asked - own.over_at} s after its end")
        own.values = [data]

    def was_restarted(self) -> bool:
        """Since we last asked, or a daemon is just being started."""
        try:
            instance = str(self.client.stats()["instance"])
        except (StoreUnavailable, StoreTimeout):
            return True
        if instance == self._instance:
            return False
        self._instance = instance
        self._seen.clear()
        return True

    # -- blocks ---------------------------------------------------------------------------

    def prompt(self) -> list[int]:
        start = self.rng.randrange(NUM_PROMPTS) * 10_000
        return list(range(start, start + self.rng.randrange(1, PROMPT_BLOCKS + 1) * BLOCK_TOKENS))

    def store_prompt(self) -> None:
        tokens = self.prompt()
        keys = self.kv.keys(tokens)
        with self.kv.writer(tokens, timeout_s=TIMEOUT_SECONDS) as writer:
            for layer in range(self.kv.num_layers):
                size = self.kv.layer_bytes(layer)
                writer.layer(layer, [block_bytes(key, layer, size) for key in keys])
            if self.rng.random() < 0.2:
                writer.abort()

    def find_prompt(self) -> None:
        hit = self.kv.lookup(self.prompt(), pin_s=3.0, timeout_s=TIMEOUT_SECONDS)
        if hit.blocks:
            self._hits.append(hit)
        while len(self._hits) > 4:
            self.kv.release(self._hits.popleft().ticket)

    def use_prompt(self) -> None:
        if not self._hits:
            return
        hit = self._hits.popleft()
        layers = range(self.kv.num_layers)
        buffers = [[bytearray(self.kv.layer_bytes(layer)) for _ in hit.blocks] for layer in layers]
        result = self.kv.load(hit.ticket, layers, buffers, timeout_s=TIMEOUT_SECONDS)
        for layer, row in zip(layers, buffers, strict=True):
            for block, (key, buffer) in enumerate(zip(hit.blocks, row, strict=True)):
                if block in result.failed_blocks:
                    continue
                self.hits += 1
                if buffer != block_bytes(key, layer, len(buffer)):
                    self.problem("block", block, f"{key.hex()} layer {layer}")
        if self.rng.random() < 0.5:
            self.kv.renew(hit.ticket, ttl_s=3.0)  # and left to end by itself
        else:
            self.kv.release(hit.ticket)

    # -- telling --------------------------------------------------------------------------

    def problem(self, kind: str, key: int, what: str) -> None:
        tell(problem=kind, key=key, life=self._life, what=what, at=time.monotonic())


class ClusterChurner(Churner):
    """One of several stores: others may not be there to agree to a change, and what is put to
    `keep` what exists looks at one node only."""

    REFUSALS = frozenset({PutStatus.FULL, PutStatus.FAILED})

    def acts(self) -> list[tuple[Callable[[], None], int]]:
        return [each for each in super().acts() if each[0] != self.put_if_absent]


WORLDS = {"alone": Churner, "cluster": ClusterChurner}


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    world, address, token, number, life, seed = sys.argv[1:]
    with connect(address, token=token, timeout_s=TIMEOUT_SECONDS) as client:
        churner = WORLDS[world](client, int(number), int(life), int(seed))

        def stop(*_: object) -> None:
            churner.stopped = True

        signal.signal(signal.SIGTERM, stop)
        tell(begun=int(life))
        churner.run()
        corrupt = client.counters.corrupt
    tell(
        operations=churner.operations,
        hits=churner.hits,
        lost_calls=churner.lost_calls,
        full=churner.full,
        corrupt=corrupt,
    )


if __name__ == "__main__":
    main()
