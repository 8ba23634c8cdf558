"""Decoders of both wires raise nothing but their own error, and hand out nothing half read."""

from __future__ import annotations

import contextlib
import random

import pytest

from moontide.kvstore import wire
from moontide.kvstore.errors import InvalidRequest
from moontide.transfer import wire as transfer_wire
from moontide.transfer.errors import TransferError

from .mutations import Mutator, golden_frames

FRAMES = golden_frames("wire_vectors.json", "wire_v1_vectors.json")
TRANSFER_FRAMES = golden_frames("transfer_vectors.json")
BODIES = (
    transfer_wire.Challenge,
    transfer_wire.Hello,
    transfer_wire.Welcome,
    transfer_wire.Refusal,
)


def decode_store_frames(rng: random.Random, count: int) -> None:
    mutator = Mutator(rng, wire.HEADER.size)
    for _ in range(count):
        golden = rng.choice(FRAMES)
        for decode in (wire.decode_request, wire.decode_reply):
            with contextlib.suppress(InvalidRequest):
                decoded = decode(mutator.body(golden))
                decode(wire.encode_frame(decoded, 1)[wire.HEADER.size :])
        with contextlib.suppress(InvalidRequest):
            header = wire.decode_header(mutator.bytes(golden[: wire.HEADER.size]).ljust(20, b"\0"))
            assert header.body_bytes <= wire.MAX_BODY_BYTES
            assert header.payload_bytes <= wire.MAX_PAYLOAD_BYTES


def decode_transfer_frames(rng: random.Random, count: int) -> None:
    mutator = Mutator(rng, transfer_wire.HEADER_BYTES)
    size = transfer_wire.HEADER_BYTES
    for _ in range(count):
        golden = rng.choice(TRANSFER_FRAMES)
        with contextlib.suppress(TransferError):
            header = transfer_wire.decode_header(mutator.bytes(golden[:size]).ljust(size, b"\0"))
            assert header.length <= transfer_wire.MAX_PIECE_BYTES
        if golden[3] < transfer_wire.Kind.READ:
            kind, body = transfer_wire.Kind(golden[3]), mutator.body(golden)
            for wanted in BODIES:
                with contextlib.suppress(TransferError):
                    transfer_wire.decode_body(kind, body, wanted)


def test_wire_decoders_survive_any_damage() -> None:
    rng = random.Random(1)
    decode_store_frames(rng, 3000)
    decode_transfer_frames(rng, 3000)


@pytest.mark.soak
def test_wire_decoders_survive_any_damage_for_long() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    decode_store_frames(rng, 100_000)
    decode_transfer_frames(rng, 100_000)
