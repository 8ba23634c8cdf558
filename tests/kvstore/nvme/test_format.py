"""Bytes on disk: golden ones that later versions must read, and decoders that survive any input."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.kvstore.errors import Corrupt
from moontide.kvstore.nvme.log_format import (
    BatchHeader,
    LogRecord,
    RecordKind,
    RegionHeader,
    UnknownVersion,
    decode_batch_header,
    decode_region_header,
    encode_batch_header,
    encode_region_header,
    peek_batch_header,
)
from moontide.kvstore.nvme.records import (
    EntryRecord,
    Names,
    Place,
    encode_record,
    extent_offsets,
    record_bytes,
    record_size,
    seal,
    unseal,
)

NONCE = bytes(range(16))
REGION_HEX = "4d54524547494f4e01000000000102030405060708090a0b0c0d0e0f07000000146e148354e959ea"
RECORD_HEX = (
    "07000000030000000010000000000000050000000000000004200000000000000200020020100500"
    + "11" * 32
    + "22" * 16
    + b"kname".hex()
    + "0010000002000000"
    + "08070605040302010100000000000000"
    + "0010000004100000"
)


def a_record() -> bytes:
    return encode_record(
        Place(region=7, ordinal=3, offset=4096, sequence=5),
        Names(b"\x11" * 32, b"\x22" * 16, b"kname"),
        element_bytes=2,
        stored_lengths=[4096, 2],
        lengths=[4096, 4100],
        checksums=[0x0102030405060708, 1],
    )


def a_batch() -> BatchHeader:
    records = [
        LogRecord(RecordKind.STORED, a_record()),
        LogRecord(RecordKind.REMOVED, b"kgone"),
        LogRecord(RecordKind.CLEARED, b"n"),
    ]
    return BatchHeader(sequence=5, offset=4096, num_bytes=16384, records=records)


def test_golden_region_header() -> None:
    data = encode_region_header(RegionHeader(7, NONCE))
    assert len(data) == 4096
    assert data.rstrip(b"\0").hex() == REGION_HEX
    assert decode_region_header(data) == RegionHeader(7, NONCE)


def test_golden_record() -> None:
    assert a_record().hex() == RECORD_HEX
    record = EntryRecord(bytes.fromhex(RECORD_HEX))
    assert (record.region, record.ordinal, record.sequence) == (7, 3, 5)
    assert (record.length, record.num_extents, record.element_bytes) == (8196, 2, 2)
    assert (record.namespace, record.parent, record.entry) == ("11" * 32, b"\x22" * 16, b"kname")
    assert list(record.checksums) == [0x0102030405060708, 1]
    assert list(record.extent_lengths) == [4096, 4100]
    assert [extent.offset for extent in record.extents] == [4096, 8192]


def test_batch_headers_come_back() -> None:
    data = encode_batch_header(a_batch(), NONCE, 4096)
    assert len(data) == 4096 == peek_batch_header(data, NONCE, 4096)
    assert decode_batch_header(data) == a_batch()


def test_a_batch_header_with_room_to_spare_comes_back() -> None:
    data = encode_batch_header(a_batch(), NONCE, 3 * 4096)
    assert len(data) == 3 * 4096 == peek_batch_header(data, NONCE, 4096)
    assert decode_batch_header(data) == a_batch()


@pytest.mark.parametrize(("nonce", "offset"), [(bytes(16), 4096), (NONCE, 8192)])
def test_header_of_elsewhere_is_none(nonce: bytes, offset: int) -> None:
    with pytest.raises(Corrupt):
        peek_batch_header(encode_batch_header(a_batch(), NONCE, 4096), nonce, offset)


def test_every_flipped_bit_is_seen() -> None:
    source = random.Random(1)
    header, batch = (
        encode_region_header(RegionHeader(7, NONCE)),
        encode_batch_header(a_batch(), NONCE, 4096),
    )
    sealed = seal(b"key", a_record())
    for data, decode in (
        (header[:52], decode_region_header),
        (batch[:300], lambda data: decode_batch_header(data + batch[300:])),
        (sealed, lambda data: unseal(b"key", data)),
    ):
        whole = decode(data)
        for bit in source.sample(range(8 * len(data)), min(400, 8 * len(data))):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with contextlib.suppress(Corrupt, UnknownVersion):
                assert decode(bytes(damaged)) == whole  # padding only


def test_record_under_another_key_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        unseal(b"other", seal(b"key", b"body"))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400))
def test_decoders_raise_nothing_but_their_own(data: bytes) -> None:
    for prefix, decode in (
        (b"", EntryRecord),
        (b"MTREGION", decode_region_header),
        (b"MTBATCH1", decode_batch_header),
        (b"MTBATCH1" + NONCE, lambda data: peek_batch_header(data, NONCE, 0)),
        (b"", lambda data: unseal(b"k", data)),
    ):
        with contextlib.suppress(Corrupt, UnknownVersion):
            decode(prefix + data)


lengths_lists = st.lists(st.sampled_from([0, 1, 64, 100, 4095, 4096, 8192]), min_size=1, max_size=9)


@settings(max_examples=100, deadline=None)
@given(lengths=lengths_lists, start=st.integers(0, 10_000), data=st.data())
def test_extents_never_overlap_and_whole_pages_are_aligned(
    lengths: list[int], start: int, data: st.DataObject
) -> None:
    stored = [data.draw(st.sampled_from([length, length // 2])) for length in lengths]
    offsets = extent_offsets(start, stored, lengths)
    end = start
    for offset, size, length in zip(offsets, stored, lengths, strict=True):
        assert offset >= end
        assert offset % 64 == 0
        if size == length and length % 4096 == 0:
            assert offset % 4096 == 0
        end = offset + size
    names = Names(b"", b"", b"k")
    body = encode_record(
        Place(1, 2, start, 3),
        names,
        element_bytes=1,
        stored_lengths=stored,
        lengths=lengths,
        checksums=[9] * len(lengths),
    )
    assert len(body) == record_bytes(names, lengths) == record_size(body[:200])[2]
    assert [extent.offset for extent in EntryRecord(body).extents] == offsets
