"""A client's life: random calls of each kind, all answers checked or written down."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import xxhash

from moontide.kvstore import (
    BlockKey,
    BlockStore,
    Group,
    KVLayout,
    Namespace,
    PutResult,
    PutStatus,
    StoreClient,
    StoreError,
    ViewExpired,
)

from .cluster import Cluster, Node
from .history import EVERY_KEY, Call, Fate, History, Kind
from .machine.world import World

T = TypeVar("T")
SIZES = (0, 1, 100, 3000, 20_000, 90_000)
INCLINATIONS = (0.1, 1.0, 1.0, 5.0)
"""To each kind of call: no client is like another."""
SLACK_RATIO, SLACK_SECONDS = 0.06, 0.15
"""How much later than its deadline a call may end."""
LAYOUT = KVLayout((Group("full", 2, 2, 8, "float16"),))
NAMESPACE = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)
PROMPTS = tuple(range(start, start + 70) for start in (0, 1000, 2000))


class Visitor:
    """One client process at one node. `run` until `ends_at`."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        history: History,
        *,
        name: str,
        node: Node,
        transport: str,
        num_keys: int,
        failures: list[str],
    ) -> None:
        self.name = name
        self.node = node
        self._world = world
        self._cluster = cluster
        self._history = history
        self._transport = transport
        self._keys = [f"k{number}" for number in range(num_keys)]
        self._failures = failures
        self._rng = random.Random(world.rng.getrandbits(64))
        self._puts = 0
        acts: tuple[tuple[int, Callable[[StoreClient], None]], ...] = (
            (20, self._put),
            (15, self._replace),
            (8, self._remove),
            (30, self._get),
            (6, self._get_many),
            (6, self._view),
            (4, self._pin),
            (3, self._look),
            (1, self._clear),
            (1, self._empty),
            (10, self._blocks),
        )
        self._acts = [act for _, act in acts]
        self._weights = [weight * self._rng.choice(INCLINATIONS) for weight, _ in acts]

    def run(self, ends_at: float) -> None:
        client: StoreClient | None = None
        while client is None and self._world.now < ends_at:
            client = self._bounded("connect", 2.0, self._connect)
        if client is None:
            return
        with client:
            while self._world.now < ends_at:
                self._act(client)
                self._world.scheduler.sleep(self._rng.expovariate(10.0))

    def _connect(self) -> StoreClient:
        return self._cluster.connect(self.node, self._transport, 2.0)

    def _act(self, client: StoreClient) -> None:
        (act,) = self._rng.choices(self._acts, self._weights)
        act(client)

    # -- string entries -----------------------------------------------------------------

    def _put(self, client: StoreClient) -> None:
        replicas = self._rng.choice((1, 1, 1, 2))
        call = self._begin(Kind.PUT, self._new_value())
        self._write(
            call, lambda t: client.put(call.key, _data(call), replicas=replicas, timeout_s=t)
        )

    def _replace(self, client: StoreClient) -> None:
        call = self._begin(Kind.REPLACE, self._new_value())
        self._write(
            call, lambda t: client.put(call.key, _data(call), if_exists="replace", timeout_s=t)
        )

    def _write(self, call: Call, put: Callable[[float], PutResult]) -> None:
        timeout_s = self._timeout()
        result = self._bounded(call.kind.value, timeout_s, lambda: put(timeout_s))
        if result is None:
            return
        if result.status is PutStatus.STORED:
            self._end(call, Fate.DONE)
        elif result.status is PutStatus.EXISTS:
            self._end(call, Fate.NOTHING)

    def _remove(self, client: StoreClient) -> None:
        call, timeout_s = self._begin(Kind.REMOVE, None), self._timeout()
        if (
            self._bounded("remove", timeout_s, lambda: client.remove(call.key, timeout_s=timeout_s))
            is not None
        ):
            self._end(call, Fate.DONE)

    def _get(self, client: StoreClient) -> None:
        call = self._begin(Kind.GET, None)
        timeout_s = self._rng.choice((None, self._timeout()))
        call.value = self._bounded(
            "get", timeout_s or 2.0, lambda: client.get(call.key, timeout_s=timeout_s)
        )
        self._end(call, Fate.DONE)

    def _view(self, client: StoreClient) -> None:
        """Its bytes stay what they are while it is held."""
        call, timeout_s = self._begin(Kind.GET, None), self._timeout()
        view = self._bounded("view", timeout_s, lambda: client.view(call.key, timeout_s=timeout_s))
        if view is None:
            return
        call.value = bytes(view.data)
        self._end(call, Fate.DONE)
        with contextlib.suppress(ViewExpired), view:
            self._world.scheduler.sleep(self._rng.uniform(0.0, 0.3))
            if bytes(view.data) != call.value and view.valid():
                self._fail(f"a view of {call.key} changed")

    def _get_many(self, client: StoreClient) -> None:
        calls = [self._begin(Kind.GET, None) for _ in range(3)]
        timeout_s = self._timeout()
        keys = [call.key for call in calls]
        values = self._bounded(
            "get_many", timeout_s, lambda: client.get_many(keys, timeout_s=timeout_s)
        )
        for call, value in zip(calls, values or (), strict=False):
            call.value = value
            self._end(call, Fate.DONE)

    def _pin(self, client: StoreClient) -> None:
        """What is pinned is read as often as one likes, and is the same each time."""
        call, timeout_s = self._begin(Kind.GET, None), self._timeout()
        pinned = self._bounded(
            "pin", timeout_s, lambda: client.pin([call.key], ttl_s=1.0, timeout_s=timeout_s)
        )
        if pinned is None:
            return
        with pinned, contextlib.suppress(StoreError):
            for key in pinned.keys:
                with pinned.view(key) as view:
                    call.value = bytes(view.data)
                self._end(call, Fate.DONE)
                self._world.scheduler.sleep(self._rng.uniform(0.0, 1.2))
                with pinned.view(key) as view:
                    changed = bytes(view.data) != call.value
                if changed:
                    self._fail(f"{call.key} changed while it was pinned")

    def _look(self, client: StoreClient) -> None:
        keys, timeout_s = self._keys, self._timeout()
        for what, call in (("exists", client.exists_many), ("prefetch", client.prefetch)):
            self._bounded(what, timeout_s, lambda call=call: call(keys, timeout_s=timeout_s))

    def _clear(self, client: StoreClient) -> None:
        call = self._begin(Kind.CLEAR, None, key=EVERY_KEY)
        timeout_s = self._timeout()
        if self._bounded("clear", timeout_s, lambda: client.clear(timeout_s=timeout_s)) is not None:
            self._end(call, Fate.DONE)

    def _empty(self, client: StoreClient) -> None:
        """Only this node: what others have comes again."""
        timeout_s = self._timeout()
        self._bounded("empty", timeout_s, lambda: client.clear(nodes="this", timeout_s=timeout_s))

    # -- blocks -------------------------------------------------------------------------

    def _blocks(self, client: StoreClient) -> None:
        timeout_s = self._timeout()
        kv = self._bounded("kv", timeout_s, lambda: client.kv(NAMESPACE, timeout_s=timeout_s))
        if kv is None:
            return
        with kv:
            tokens = self._rng.choice(PROMPTS)[: self._rng.randint(16, 70)]
            act = self._rng.choice((self._store_blocks, self._read_blocks))
            self._bounded("blocks", 2 * timeout_s, lambda: act(kv, tokens, timeout_s))

    def _store_blocks(self, kv: BlockStore, tokens: Sequence[int], timeout_s: float) -> None:
        keys = kv.keys(tokens)
        replicas = self._rng.choice((1, 1, 2))
        with kv.writer(tokens, replicas=replicas, timeout_s=timeout_s) as writer:
            for layer in range(kv.num_layers):
                writer.layer(layer, [block_of(key, layer, kv.layer_bytes(layer)) for key in keys])
        self._history.counts["blocks stored"] += len(keys)

    def _read_blocks(self, kv: BlockStore, tokens: Sequence[int], timeout_s: float) -> None:
        with kv.reader(tokens, timeout_s=timeout_s) as reader:
            for layer in range(kv.num_layers):
                wanted = [block_of(key, layer, kv.layer_bytes(layer)) for key in reader.blocks]
                if list(map(bytes, reader.layer(layer))) != wanted:
                    self._fail(f"blocks of {tokens} differ in layer {layer}")
            self._history.counts["blocks read"] += len(reader.blocks)

    # -- what all share -----------------------------------------------------------------

    def _bounded(self, what: str, timeout_s: float, call: Callable[[], T]) -> T | None:
        """None when the store refused."""
        begin = self._world.now
        try:
            result = call()
            self._history.counts[f"{what} done"] += 1
            return result
        except StoreError as error:
            self._history.counts[f"{what} {type(error).__name__}"] += 1
            return None
        finally:
            took = self._world.now - begin
            if took > timeout_s * (1 + SLACK_RATIO) + SLACK_SECONDS:
                self._fail(f"{what} took {took:.3f} s of {timeout_s:.3f}")

    def _timeout(self) -> float:
        return self._rng.choice((0.05, 0.3, 1.0, 3.0)) * self._rng.uniform(0.5, 1.5)

    def _new_value(self) -> bytes:
        self._puts += 1
        head = f"{self.name}.{self._puts}|".encode()
        return head + self._rng.randbytes(16) * (self._rng.choice(SIZES) // 16)

    def _begin(self, kind: Kind, value: bytes | None, *, key: str = "") -> Call:
        """Of any key, unless told."""
        key = key or min(self._rng.choice(self._keys), self._rng.choice(self._keys))
        now = self._world.now
        return self._history.add(Call(self.name, self.node.name, kind, key, value, now))

    def _end(self, call: Call, fate: Fate) -> None:
        call.end, call.fate = self._world.now, fate

    def _fail(self, what: str) -> None:
        self._failures.append(f"{self._world.now:.6f} {self.name} at {self.node.name}: {what}")


def _data(call: Call) -> bytes:
    assert call.value is not None
    return call.value


def block_of(key: BlockKey, layer: int, num_bytes: int) -> bytes:
    """What the block with this key is in every world."""
    seed = xxhash.xxh3_64_digest(key + bytes([layer]))
    return (seed * (num_bytes // len(seed) + 1))[:num_bytes]
