"""What the client's tests share: a small model's blocks, the protocol by hand, bounded waiting."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import xxhash

from moontide.kvstore import (
    BlockKey,
    BlockStore,
    Group,
    JobId,
    JobResult,
    KVLayout,
    Namespace,
    PrefixHit,
    Shard,
    StoreClient,
    StoreTimeout,
    StoreUnavailable,
    connect,
    wire,
)
from moontide.kvstore.client.connections.address import parse_address
from moontide.kvstore.client.connections.connection import Connection, Identity, open_connection
from moontide.kvstore.client.deadline import Deadline
from moontide.transfer import Mapping
from moontide.transfer.types import Instance

from ...store_process import StoreProcess
from ...waiting import wait_until
from ..model import values

SECONDS = 10.0
TOKENS = range(100)  # six full blocks of 16
LAYOUT = KVLayout((Group("full", 4, 4, 8, "float16"),))
NAMESPACE = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)


def address(daemon: StoreProcess, transport: str = "unix") -> str:
    return f"unix:{daemon.socket}" if transport == "unix" else f"tcp://{daemon.listen}"


def value_of(key: str, size: int, version: int) -> bytes:
    """Of a key that is a letter and a number."""
    return values.value_of(int(key[1:]), version, size)


def is_value_of(key: str, data: bytes) -> bool:
    return values.version_of(int(key[1:]), data) is not None


@contextlib.contextmanager
def client_of(
    daemon: StoreProcess, transport: str = "unix", timeout_s: float = SECONDS
) -> Iterator[StoreClient]:
    with connect(
        address(daemon, transport),
        token=daemon.token if transport == "tcp" else "",
        timeout_s=timeout_s,
    ) as client:
        yield client


@contextlib.contextmanager
def other_store(daemon: StoreProcess, shard: Shard | None = None) -> Iterator[BlockStore]:
    """The writer: another client of the same daemon."""
    with client_of(daemon) as client, client.kv(NAMESPACE, shard=shard) as kv:
        yield kv


def block_bytes(key: BlockKey, layer: int, num_bytes: int) -> bytes:
    """What block `key` holds in `layer`: different for every byte's place."""
    seed = xxhash.xxh3_64_digest(key + bytes([layer]))
    return (seed * (num_bytes // len(seed) + 1))[:num_bytes]


def layers_of(kv: BlockStore, keys: Sequence[BlockKey]) -> list[list[bytes]]:
    """Content of every layer, block by block."""
    return [
        [block_bytes(key, layer, kv.layer_bytes(layer)) for key in keys]
        for layer in range(kv.num_layers)
    ]


def buffers_for(kv: BlockStore, layers: Sequence[int], num_blocks: int) -> list[list[bytearray]]:
    return [[bytearray(kv.layer_bytes(layer)) for _ in range(num_blocks)] for layer in layers]


def write_prompt(
    kv: BlockStore, token_ids: Sequence[int], first_block: int = 0, layer_offset: int = 0
) -> None:
    """Stores every block of a prompt. `layer_offset`: the model's layer of the coverage's first."""
    keys = kv.keys(token_ids)[first_block:]
    with kv.writer(token_ids, first_block=first_block, timeout_s=SECONDS) as writer:
        for layer in range(kv.num_layers):
            num_bytes = kv.layer_bytes(layer)
            writer.layer(layer, [block_bytes(key, layer + layer_offset, num_bytes) for key in keys])


def check_prompt(kv: BlockStore, token_ids: Sequence[int]) -> int:
    """Reads what is there of a prompt and compares each byte; how many tokens."""
    with kv.reader(token_ids, timeout_s=SECONDS) as reader:
        for layer in range(kv.num_layers):
            expected = [block_bytes(key, layer, kv.layer_bytes(layer)) for key in reader.blocks]
            assert reader.layer(layer) == expected
        return reader.num_tokens


def hit_under_way(kv: BlockStore, token_ids: Sequence[int], pin_s: float = SECONDS) -> PrefixHit:
    """Every full block of a prompt, as readers find it: also those that a client still writes, for
    whose reservation this waits."""
    keys = kv.keys(token_ids)

    def find(pin_s: float | None) -> PrefixHit:
        make = kv.jobs.lookup(keys, pin_s, pending=True)
        hit = kv.jobs.desk.run(make, Deadline(SECONDS)).hit
        assert hit is not None
        return hit

    wait_until(lambda: len(find(None).blocks) == len(keys))
    return find(pin_s)


def wait_until_asked(client: StoreClient, key: str) -> None:
    """Until the client no longer reads `key` by itself: for BEAT_SECONDS after the daemon's last
    sign it does."""

    def is_asked() -> bool:
        try:
            client.get(key, timeout_s=0.01)
        except (StoreTimeout, StoreUnavailable):
            return True
        return False

    wait_until(is_asked)


def result_of(kv: BlockStore, job: JobId, seconds: float = SECONDS) -> JobResult:
    """Polls until `job` is reported; others' results are thrown away."""
    results: list[JobResult] = []
    wait_until(lambda: results.extend(kv.poll()) or any(r.job == job for r in results), seconds)
    return next(result for result in results if result.job == job)


def own_memory(pid: int) -> int:
    """Anonymous bytes: without pool and header slots, which are shared memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def fork() -> int:
    """`os.fork`; Python 3.12 and later warn of it in a process with threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Scribbler:
    """A client that keeps its granted segment mapped and writes where it likes."""

    def __init__(self, daemon: StoreProcess) -> None:
        identity = Identity(parse_address(address(daemon)), "", Instance.new("scribbler"))
        self.connection: Connection = open_connection(identity, Deadline(SECONDS))
        os.close(self.connection.reader.take_descriptor())
        self.segment = -1
        self.memory = memoryview(b"")

    def request(self, message: wire.Request) -> wire.Reply:
        return self.connection.request(message, Deadline(SECONDS))[0]

    def put(self, entry: bytes, value: bytes) -> int:
        """Stores one string entry like a good client; its offset in `memory`."""
        reserved = self.request(wire.Reserve([entry], [len(value)]))
        assert isinstance(reserved, wire.Reserved)
        status, slot, generation, segment, offset, writable = reserved.results[0]
        assert (status, writable) == (0, True)
        self.map(segment)
        self.memory[offset : offset + len(value)] = value
        reply = self.request(wire.Commit([slot], [generation], [xxhash.xxh3_64_intdigest(value)]))
        assert reply == wire.PutReply([(0, "")])
        return offset

    def map(self, segment: int) -> None:
        if segment != self.segment:
            reply = self.request(wire.MapSegment(segment, True))
            assert isinstance(reply, wire.SegmentReply)
            descriptor = self.connection.reader.take_descriptor()
            self.memory = Mapping(descriptor, reply.num_bytes, writable=True).buffer
            self.segment = segment

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Scribbler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
