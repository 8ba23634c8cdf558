"""The transfer wire: golden frames, proofs, bounds, and decoders that raise only Malformed."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.transfer import wire
from moontide.transfer.errors import Malformed, VersionMismatch
from moontide.transfer.wire import Header, Kind

VECTORS = Path(__file__).parents[1] / "data" / "transfer_vectors.json"
CASES = {case["name"]: case for case in json.loads(VECTORS.read_text())["cases"]}
BODIES = {
    "Challenge": (Kind.CHALLENGE, wire.Challenge),
    "Hello": (Kind.HELLO, wire.Hello),
    "Welcome": (Kind.WELCOME, wire.Welcome),
    "Refusal": (Kind.REFUSED, wire.Refusal),
}
TOKEN = b"golden token"


def frame_of(name: str) -> bytes:
    return bytes.fromhex(CASES[name]["frame"])


def plain(body: msgspec.Struct) -> list[Any]:
    fields = [getattr(body, name) for name in body.__struct_fields__]
    return [{"hex": field.hex()} if isinstance(field, bytes) else field for field in fields]


def test_every_kind_has_a_golden_frame() -> None:
    assert {bytes.fromhex(case["frame"])[3] for case in CASES.values()} == set(map(int, Kind))


@pytest.mark.parametrize("name", sorted(CASES.keys() - BODIES.keys()))
def test_golden_transfer_frames(name: str) -> None:
    frame, fields = frame_of(name), CASES[name]["header"]
    magic, version, kind, segment, request_id, offset, length = struct.unpack(
        "<2sBBIQQQ", frame[:32]
    )
    assert (magic, version) == (b"MX", 1)
    assert fields == {
        "kind": kind,
        "segment": segment,
        "request_id": request_id,
        "offset": offset,
        "length": length,
    }
    header = wire.decode_header(frame[:32])
    assert header == Header(**{**fields, "kind": Kind(kind)})
    if name == "FAILED":
        assert wire.encode_reason(request_id, CASES[name]["reason"]) == frame
    else:
        assert wire.encode_header(header) == frame


@pytest.mark.parametrize("name", sorted(BODIES))
def test_golden_handshake_frames(name: str) -> None:
    frame = frame_of(name)
    kind, form = BODIES[name]
    header = wire.decode_header(frame[:32])
    assert header == Header(kind, length=len(frame) - 32)
    body = wire.decode_body(header.kind, frame[32:], form)
    assert plain(body) == CASES[name]["body"]
    assert wire.encode_body(body) == frame


def test_golden_proofs_by_a_second_implementation() -> None:
    challenge = wire.decode_body(Kind.CHALLENGE, frame_of("Challenge")[32:], wire.Challenge)
    hello = wire.decode_body(Kind.HELLO, frame_of("Hello")[32:], wire.Hello)
    welcome = wire.decode_body(Kind.WELCOME, frame_of("Welcome")[32:], wire.Welcome)

    def prove(*fields: bytes) -> bytes:
        message = b"".join(struct.pack("<I", len(field)) + field for field in fields)
        return hmac.new(TOKEN, message, hashlib.sha256).digest()

    said = f"1 1 {hello.client} {hello.server}".encode()
    assert hello.proof == prove(b"moontide transfer", b"client", challenge.nonce, hello.nonce, said)
    assert welcome.proof == prove(
        b"moontide transfer", b"server", hello.nonce, challenge.nonce, f"1 {hello.server}".encode()
    )


def test_a_proof_covers_every_field_and_both_nonces() -> None:
    challenge = wire.Challenge(bytes(32))
    hello = wire.Hello(1, 1, "a/1/00", "b/1/00", bytes(32), b"")
    proofs = {
        wire.client_proof(TOKEN, challenge, hello),
        wire.server_proof(TOKEN, challenge, hello, 1),
    }
    changes = [
        {"oldest_version": 2},
        {"newest_version": 2},
        {"client": "c/1/00"},
        {"server": "c/1/00"},
        {"nonce": bytes([1] * 32)},
    ]
    for change in changes:
        proofs.add(wire.client_proof(TOKEN, challenge, msgspec.structs.replace(hello, **change)))
    proofs.add(wire.client_proof(TOKEN, wire.Challenge(bytes([1] * 32)), hello))
    proofs.add(wire.client_proof(b"other", challenge, hello))
    proofs.add(wire.server_proof(TOKEN, challenge, hello, 2))
    assert len(proofs) == 2 + len(changes) + 3


@pytest.mark.parametrize(
    ("oldest", "newest", "agreed"), [(1, 1, 1), (1, 2, 1), (0, 1, 1), (1, 99, 1)]
)
def test_the_newest_common_version_is_spoken(oldest: int, newest: int, agreed: int) -> None:
    assert wire.common_version(oldest, newest) == agreed


@pytest.mark.parametrize(("oldest", "newest"), [(2, 3), (0, 0), (2, 1)])
def test_no_common_version_is_refused_with_both_ranges(oldest: int, newest: int) -> None:
    with pytest.raises(VersionMismatch, match=rf"{oldest}\.\.{newest}.*1\.\.1"):
        wire.common_version(oldest, newest)


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        (Kind.HELLO, wire.MAX_HANDSHAKE_BYTES + 1),
        (Kind.READ, wire.MAX_PIECE_BYTES + 1),
        (Kind.READ, 0),
        (Kind.WRITE, 2**64 - 1),
        (Kind.DATA, 0),
        (Kind.DONE, 1),
        (Kind.FAILED, wire.MAX_REASON_BYTES + 1),
    ],
)
def test_lengths_are_bounded_before_anything_is_allocated(kind: Kind, length: int) -> None:
    with pytest.raises(Malformed, match=str(length)):
        wire.decode_header(wire.HEADER.pack(b"MX", 1, kind, 0, 0, 0, length))


@pytest.mark.parametrize(
    ("magic", "version", "kind"), [(b"MT", 1, 16), (b"MX", 0, 16), (b"MX", 2, 16), (b"MX", 1, 5)]
)
def test_foreign_frames_are_refused(magic: bytes, version: int, kind: int) -> None:
    with pytest.raises(Malformed):
        wire.decode_header(wire.HEADER.pack(magic, version, kind, 0, 0, 0, 1))


def test_a_reason_that_is_too_long_is_cut() -> None:
    frame = wire.encode_reason(1, "é" * 1000)
    assert wire.decode_header(frame[:32]).length == len(frame) - 32 == wire.MAX_REASON_BYTES


@given(st.binary(max_size=100))
def test_random_bytes_raise_only_malformed(data: bytes) -> None:
    for size in (len(data), 32):
        try:
            wire.decode_header(data[:size].ljust(min(size, 32), b"\0"))
        except Malformed:
            continue
    for kind, form in BODIES.values():
        try:
            wire.decode_body(kind, data, form)
        except Malformed:
            continue


@given(st.sampled_from(sorted(CASES)), st.data())
def test_damaged_frames_raise_only_malformed(name: str, data: st.DataObject) -> None:
    frame = bytearray(frame_of(name))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        header = wire.decode_header(frame[:32])
        for kind, form in BODIES.values():
            if header.kind is kind:
                wire.decode_body(kind, bytes(frame[32:]), form)
    except Malformed:
        return


def test_deeply_nested_bodies_are_refused() -> None:
    for kind, form in BODIES.values():
        with pytest.raises(Malformed):
            wire.decode_body(kind, b"\x91" * 100_000, form)
