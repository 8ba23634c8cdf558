"""Damaged bytes at the other two ports: where peers read the pool, and the admin's HTTP."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.kvstore.daemon.data_dir import read_state
from moontide.transfer import wire

from ..store_process import StartStore, StoreProcess
from .mutations import NUMBERS, Mutator, golden_frames
from .targets import send_and_hang_up, send_interleaved, under_attack

FRAMES = golden_frames("transfer_vectors.json")
FLAGS = ("--dram", "16MiB", "--segment", "2MiB", "--stall-seconds", "2")
CLIENT = "attacker/1/" + "ab" * 16
REQUESTS = [
    b"GET /v1/stats HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n\r\n",
    b"GET /v1/blocks?limit=10&key_prefix=s:a HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Authorization: Bearer TOKEN\r\n\r\n",
    b"POST /v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n"
    b'Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{"keys": ["s:nope"]}',
    b"POST /v1/audit HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"DELETE /v1/blocks/s:nope HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\n"
    b"Connection: close\r\n\r\n",
]


@pytest.fixture(scope="module")
def daemon(
    module_store_daemon: StartStore, tmp_path_factory: pytest.TempPathFactory
) -> StoreProcess:
    cluster = tmp_path_factory.mktemp("cluster")
    return module_store_daemon(*FLAGS, "--cluster", f"file:{cluster}")


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10.0)


class TransferAttacker:
    """Of whom half know the token, and come as far as to ask for bytes."""

    def __init__(self, daemon: StoreProcess, seed: int) -> None:
        state = read_state(daemon.data_dir)
        assert state is not None
        assert state.transfer is not None
        self._address, self._instance = state.transfer, state.instance
        self._token = daemon.token.encode()
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng, wire.HEADER_BYTES)
        self._newest = self._rng.choice([wire.OLDEST_VERSION, wire.WIRE_VERSION])

    def connected(self) -> socket.socket:
        sock = dial(self._address)
        if self._rng.random() < 0.5:
            return sock
        data = sock.recv(wire.HEADER_BYTES + wire.MAX_HANDSHAKE_BYTES)
        header = wire.decode_header(data[: wire.HEADER_BYTES])
        challenge = wire.decode_body(header.kind, data[wire.HEADER_BYTES :], wire.Challenge)
        unproven = wire.Hello(1, self._newest, CLIENT, self._instance, bytes(wire.NONCE_BYTES), b"")
        proof = wire.client_proof(self._token, challenge, unproven)
        hello = wire.Hello(1, self._newest, CLIENT, self._instance, bytes(wire.NONCE_BYTES), proof)
        sock.sendall(wire.encode_body(hello))
        return sock

    def frame(self) -> bytes:
        golden = self._rng.choice(FRAMES)
        if self._rng.random() < 0.5 and golden[3] < wire.Kind.READ:
            body = self._mutator.body(golden)
            length = self._rng.choice([len(body), len(body), abs(self._rng.choice(NUMBERS))])
            return wire.HEADER.pack(b"MX", 1, golden[3], 0, 0, 0, length & (1 << 64) - 1) + body
        kind = self._rng.choice([*wire.Kind, 0, 255])
        offset = abs(self._rng.choice(NUMBERS)) & (1 << 64) - 1
        length = self._rng.choice([0, 1, 100, 4096, 1 << 20, wire.MAX_PIECE_BYTES, 1 << 63])
        segment = self._rng.choice([0, 1, 7, (1 << 32) - 1])
        header = wire.HEADER.pack(
            b"MX", 1, kind, segment, self._rng.getrandbits(64), offset, length
        )
        return header + self._rng.randbytes(self._rng.choice([0, 0, 100]))

    def stream(self) -> bytes:
        frames = b"".join(self.frame() for _ in range(self._rng.randrange(1, 12)))
        return self._mutator.bytes(frames) if self._rng.random() < 0.2 else frames

    def attack(self) -> None:
        if self._rng.random() < 0.7:
            send_and_hang_up(self.connected(), [self.stream()])
        else:
            socks = [self.connected() for _ in range(4)]
            send_interleaved(self._rng, socks, [self.stream() for _ in socks])


class HttpAttacker:
    def __init__(self, daemon: StoreProcess, seed: int) -> None:
        self._address = daemon.admin.removeprefix("http://")
        self._token = daemon.token.encode()
        self._rng = random.Random(seed)
        self._mutator = Mutator(self._rng, 0)

    def request(self) -> bytes:
        request = self._rng.choice(REQUESTS).replace(b"TOKEN", self._token)
        kind = self._rng.random()
        if kind < 0.2:
            lie = b"Content-Length: %d\r\n" % self._rng.choice([0, 1, 1 << 31, 1 << 62, 99999])
            return request.replace(b"\r\n", b"\r\n" + lie, 1)
        if kind < 0.3:
            return request.replace(b"\r\n", b"\r\nX: " + b"x" * 100_000 + b"\r\n", 1)
        if kind < 0.4:
            return request.replace(b"\r\n", b"\r\n" + b"X: y\r\n" * 3000, 1)
        return self._mutator.bytes(request)

    def attack(self) -> None:
        if self._rng.random() < 0.7:
            stream = b"".join(self.request() for _ in range(self._rng.randrange(1, 4)))
            send_and_hang_up(dial(self._address), [stream])
        else:
            socks = [dial(self._address) for _ in range(4)]
            send_interleaved(self._rng, socks, [self.request() for _ in socks])


ATTACKERS: list[Callable[[StoreProcess, int], TransferAttacker | HttpAttacker]] = [
    TransferAttacker,
    HttpAttacker,
]


@pytest.mark.parametrize("attacker", ATTACKERS)
def test_any_damaged_bytes_at_a_port_hurt_nobody(
    daemon: StoreProcess,
    attacker: Callable[[StoreProcess, int], TransferAttacker | HttpAttacker],
) -> None:
    with under_attack(daemon) as bystander:
        for seed in range(300):
            attacker(daemon, seed).attack()
            bystander.check()
    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < 100


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("attacker", ATTACKERS)
def test_any_damaged_bytes_at_a_port_for_long(
    daemon: StoreProcess,
    attacker: Callable[[StoreProcess, int], TransferAttacker | HttpAttacker],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    end = time.monotonic() + 150
    with under_attack(daemon) as bystander:
        while time.monotonic() < end:
            seed += 1
            print("seed", seed)
            attacker(daemon, seed).attack()
            bystander.check()
