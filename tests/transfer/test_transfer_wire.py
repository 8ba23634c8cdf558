"""The transfer wire: golden frames, proofs, bounds, and decoders that raise only Malformed."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Sequence
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
    if name == "WRITES":
        writes = [Header(**{**write, "kind": Kind.WRITE}) for write in CASES[name]["writes"]]
        assert wire.decode_writes(header, frame[32:]) == writes
        assert wire.encode_writes(writes) == frame
    elif name == "FAILED":
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
    ("oldest", "newest", "agreed"), [(1, 1, 1), (1, 2, 2), (0, 1, 1), (2, 3, 2), (1, 99, 2)]
)
def test_the_newest_common_version_is_spoken(oldest: int, newest: int, agreed: int) -> None:
    assert wire.common_version(oldest, newest) == agreed


@pytest.mark.parametrize(("oldest", "newest"), [(3, 4), (0, 0), (3, 2)])
def test_no_common_version_is_refused_with_both_ranges(oldest: int, newest: int) -> None:
    with pytest.raises(VersionMismatch, match=rf"{oldest}\.\.{newest}.*1\.\.2"):
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
        (Kind.WRITES, 33),
        (Kind.WRITES, 64 * 16 + wire.MAX_BUNDLE_BYTES + 1),
        (Kind.DATAS, wire.MAX_BUNDLE_BYTES + 1),
        (Kind.DONES, 1),
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


@pytest.mark.parametrize("kind", [Kind.WRITES, Kind.DATAS, Kind.DONES])
@pytest.mark.parametrize("count", [0, 1, wire.MAX_BUNDLE_SLICES + 1, 1 << 40])
def test_bundles_have_a_bounded_number_of_slices(kind: Kind, count: int) -> None:
    length = 0 if kind is Kind.DONES else 100
    with pytest.raises(Malformed, match=f"{count} slices"):
        wire.decode_header(wire.HEADER.pack(b"MX", 1, kind, 0, 0, count, length))


@pytest.mark.parametrize("kind", [Kind.WRITES, Kind.DATAS, Kind.DONES])
def test_all_ids_of_a_bundle_are_ids(kind: Kind) -> None:
    """An answer to one alone could not be written else."""
    length = 0 if kind is Kind.DONES else 100
    last = wire.MAX_REQUEST_ID - 1
    header = wire.decode_header(wire.HEADER.pack(b"MX", 1, kind, 0, last, 2, length))
    assert all(wire.encode_header(Header(Kind.DONE, 0, each)) for each in header.request_ids)
    with pytest.raises(Malformed, match="ids up to"):
        wire.decode_header(wire.HEADER.pack(b"MX", 1, kind, 0, last + 1, 2, length))


SMALL_WRITES = st.builds(
    lambda segment, offset, length: Header(Kind.WRITE, segment, 0, offset, length),
    st.integers(0, 2**32 - 1),
    st.integers(0, wire.MAX_OFFSET),
    st.integers(1, wire.MAX_BUNDLE_BYTES // wire.MAX_BUNDLE_SLICES),
)


@given(st.integers(0, 2**63), st.lists(SMALL_WRITES, min_size=2, max_size=64))
def test_a_bundle_asks_for_what_its_writes_would(first_id: int, writes: list[Header]) -> None:
    writes = [each._replace(request_id=first_id + index) for index, each in enumerate(writes)]
    assert wire.bundle_length(writes) == len(writes)
    frame = wire.encode_writes(writes)
    header = wire.decode_header(frame[:32])
    assert header.length == len(frame) - 32 + sum(write.length for write in writes)
    assert len(frame) == 32 + wire.table_bytes(header)
    assert wire.decode_writes(header, frame[32:]) == writes


@given(st.integers(2, 64), st.integers(0, 2 << 20), st.data())
def test_tables_that_lie_raise_only_malformed(count: int, length: int, data: st.DataObject) -> None:
    """What is understood is as long as its frame, and within every bound."""
    entry = st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 100, 2**32 - 1]))
    entries = data.draw(st.lists(entry, min_size=count, max_size=count))
    offset = data.draw(st.sampled_from([0, wire.MAX_OFFSET, 2**64 - 1]))
    table = b"".join(struct.pack("<IIQ", *each, offset) for each in entries)
    header = Header(Kind.WRITES, 0, 1, count, length)
    try:
        writes = wire.decode_writes(header, table)
    except Malformed:
        return
    assert len(table) + sum(write.length for write in writes) == length
    assert all(write.length and write.offset <= wire.MAX_OFFSET for write in writes)


@pytest.mark.parametrize(
    ("sizes", "ids", "expected"),
    [
        ([10], [1], 1),
        ([10] * 3, [1, 2, 3], 3),
        ([10] * 3, [1, 3, 4], 1),
        ([10] * 70, range(1, 71), wire.MAX_BUNDLE_SLICES),
        ([wire.MAX_BUNDLE_BYTES // 2] * 3, [1, 2, 3], 2),
        ([wire.MAX_PIECE_BYTES, 1], [1, 2], 1),
    ],
)
def test_what_shares_a_frame(sizes: list[int], ids: Sequence[int], expected: int) -> None:
    for kind, other in [(Kind.READ, Kind.WRITE), (Kind.WRITE, Kind.READ)]:
        requests = [Header(kind, 0, n, 0, size) for n, size in zip(ids, sizes, strict=True)]
        assert wire.bundle_length(requests) == expected
        assert wire.bundle_length([*requests[:1], *(r._replace(kind=other) for r in requests)]) == 1


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
