"""Damaged frames on the unix socket and the data port: one connection ends, or is told no."""

from __future__ import annotations

import random
import socket
import time

import msgspec
import pytest

from moontide.kvstore import wire
from moontide.transfer.types import boot_id

from ..kvstore.daemon.admin import Admin
from ..kvstore.daemon.raw_client import RawClient
from ..store_process import StartStore, StoreProcess
from .mutations import NUMBERS, Mutator, golden_frames
from .targets import send_and_hang_up, send_interleaved, under_attack

FRAMES = golden_frames("wire_vectors.json", "wire_v1_vectors.json")
FLAGS = ("--dram", "16MiB", "--segment", "2MiB", "--nvme", "32MiB", "--stall-seconds", "2")


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon(*FLAGS)


class Attacker:
    def __init__(self, daemon: StoreProcess, seed: int) -> None:
        self._daemon = daemon
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng, wire.HEADER.size)

    def greeted(self) -> socket.socket:
        """Over either transport, in either version."""
        version = self._rng.choice([1, 2])
        if self._rng.random() < 0.7:
            client = RawClient(f"unix:{self._daemon.socket}")
            answer = client.hello(newest_version=version)
        else:
            client = RawClient(self._daemon.listen or "")
            answer = client.hello(newest_version=version, token=self._daemon.token)
        assert isinstance(answer.message, wire.Welcome)
        assert answer.message.boot_id == boot_id()
        return client.hand_over()

    def ungreeted(self) -> socket.socket:
        return RawClient(f"unix:{self._daemon.socket}").socket

    def frame(self) -> bytes:
        golden = self._rng.choice(FRAMES)
        body = self._mutator.body(golden)
        payload = self._rng.randbytes(self._rng.choice([0, 0, 5, 5, 1000]))
        body_bytes, payload_bytes = len(body), len(payload)
        if self._rng.random() < 0.05:
            body_bytes = abs(self._rng.choice(NUMBERS)) & 0xFFFFFFFF
        if self._rng.random() < 0.05:
            payload_bytes = abs(self._rng.choice(NUMBERS)) & (1 << 64) - 1
        header = wire.HEADER.pack(
            b"MT",
            self._rng.choice([1, 2, 2, 2, 3, 0]),
            self._rng.choice([0, 0, 0, 255]),
            self._rng.getrandbits(32),
            body_bytes,
            payload_bytes,
        )
        frame = header + body + payload
        return self._mutator.bytes(frame) if self._rng.random() < 0.05 else frame

    def stream(self) -> bytes:
        """Some frames; the last may be cut off."""
        frames = b"".join(self.frame() for _ in range(self._rng.randrange(1, 20)))
        if self._rng.random() < 0.3:
            return frames[: self._rng.randrange(len(frames))]
        return frames

    def attack(self) -> None:
        kind = self._rng.random()
        if kind < 0.6:
            send_and_hang_up(self.greeted(), [self.stream()])
        elif kind < 0.7:
            send_and_hang_up(self.ungreeted(), [self.stream()])
        else:
            socks = [self.greeted() for _ in range(4)]
            send_interleaved(self._rng, socks, [self.stream() for _ in socks])


def test_any_damaged_frames_hurt_one_connection_at_most(daemon: StoreProcess) -> None:
    with under_attack(daemon) as bystander:
        for seed in range(250):
            Attacker(daemon, seed).attack()
            bystander.check()
    understood = Admin(daemon.admin, daemon.token).stats()["requests"]
    assert set(understood) == {kind.__name__ for kind in wire.Request.__args__}


def test_counts_that_lie_allocate_nothing(daemon: StoreProcess) -> None:
    """As many elements as a frame of 8 MiB can claim, of every message."""
    with under_attack(daemon) as bystander:
        for golden in FRAMES:
            body = msgspec.msgpack.decode(golden[wire.HEADER.size :])
            many = [
                field * 100_000 if isinstance(field, list | bytes) and field else field
                for field in body
            ]
            encoded = msgspec.msgpack.encode(many)[: wire.MAX_BODY_BYTES]
            header = wire.HEADER.pack(b"MT", 2, 0, 1, len(encoded), 0)
            send_and_hang_up(Attacker(daemon, 0).greeted(), [header + encoded])
        bystander.check()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_any_damaged_frames_for_long(daemon: StoreProcess) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    end = time.monotonic() + 300
    with under_attack(daemon) as bystander:
        while time.monotonic() < end:
            seed += 1
            print("seed", seed)
            Attacker(daemon, seed).attack()
            bystander.check()
