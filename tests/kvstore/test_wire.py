"""Frames and messages: golden bytes, totality, and decoders that raise only InvalidRequest."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore import wire
from moontide.kvstore.errors import ERRORS_BY_CODE, InvalidRequest, StoreError

CASES = json.loads((Path(__file__).parents[1] / "data" / "wire_vectors.json").read_text())["cases"]
REQUESTS = {message.__name__ for message in get_args(wire.Request)}
REPLIES = {message.__name__ for message in get_args(wire.Reply)}


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def decode(name: str, body: bytes) -> wire.Request | wire.Reply:
    return wire.decode_request(body) if name in REQUESTS else wire.decode_reply(body)


def test_every_message_has_a_golden_frame() -> None:
    assert {case["message"] for case in CASES} == REQUESTS | REPLIES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["message"])
def test_golden_frames(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["frame"])
    magic, version, flags, request_id, body_bytes, payload_bytes = struct.unpack(
        "<2sBBIIQ", frame[:20]
    )
    body = frame[20:]
    assert (magic, version, flags, request_id) == (b"MT", 2, 0, 0x01020304)
    assert (body_bytes, payload_bytes) == (len(body), 5)
    assert plain(msgspec.msgpack.decode(body)) == case["body"]
    header = wire.decode_header(frame)
    assert header == (2, 0x01020304, len(body), 5)
    message = decode(case["message"], body)
    assert type(message).__name__ == case["message"]
    assert wire.encode_frame(message, 0x01020304, 5) == frame


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["message"])
def test_a_message_of_the_other_direction_is_refused(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["frame"])[wire.HEADER.size :]
    other = wire.decode_reply if case["message"] in REQUESTS else wire.decode_request
    with pytest.raises(InvalidRequest):
        other(body)


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_invalid_request(data: bytes) -> None:
    for decoder in (wire.decode_request, wire.decode_reply):
        try:
            decoder(data)
        except InvalidRequest:
            continue
    if len(data) >= wire.HEADER.size and data[:2] != wire.MAGIC:
        with pytest.raises(InvalidRequest):
            wire.decode_header(data)


@given(st.sampled_from(CASES), st.data())
def test_damaged_messages_raise_only_invalid_request(
    case: dict[str, Any], data: st.DataObject
) -> None:
    body = bytearray(bytes.fromhex(case["frame"])[wire.HEADER.size :])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    for damaged in (bytes(body), bytes(body[:cut]), bytes(body) + b"\x00"):
        try:
            decode(case["message"], damaged)
        except InvalidRequest:
            continue


@pytest.mark.parametrize(
    ("body_bytes", "payload_bytes", "names"),
    [
        (wire.MAX_BODY_BYTES + 1, 0, f"{wire.MAX_BODY_BYTES + 1}.*{wire.MAX_BODY_BYTES}"),
        (0, wire.MAX_PAYLOAD_BYTES + 1, f"{wire.MAX_PAYLOAD_BYTES + 1}"),
    ],
)
def test_lengths_are_bounded_before_anything_is_allocated(
    body_bytes: int, payload_bytes: int, names: str
) -> None:
    header = wire.HEADER.pack(wire.MAGIC, 1, 0, 1, body_bytes, payload_bytes)
    with pytest.raises(InvalidRequest, match=names):
        wire.decode_header(header)


def test_deeply_nested_bodies_are_refused() -> None:
    for nesting in (b"\x91", b"\x81\xa1a"):
        with pytest.raises(InvalidRequest):
            wire.decode_request(nesting * 100_000 + b"\x90")


def test_the_table_of_error_codes_is_total() -> None:
    def tree(error: type[StoreError]) -> set[type[StoreError]]:
        return {error}.union(*map(tree, error.__subclasses__()))

    # Subclasses elsewhere end a process or stay inside a client: they never cross the wire.
    errors = {error for error in tree(StoreError) if error.__module__ == StoreError.__module__}
    assert set(ERRORS_BY_CODE.values()) == errors
    assert all(ERRORS_BY_CODE[error.code] is error for error in errors)
