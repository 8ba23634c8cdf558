from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore.service import HostPort, Secret, Size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 64 << 10),
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
        ("2TiB", 2 << 40),
        ("8 mib", 8 << 20),
        ("17B", 17),
    ],
)
def test_size_reads_plain_numbers_and_units(text: str, num_bytes: int) -> None:
    assert Size.parse(text) == num_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5GiB", "64MB", "64MiBs", "0x10", "nan"])
def test_size_refuses_what_could_be_misread(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        Size.parse(text)


@given(st.integers(0, 1 << 50))
def test_size_text_reads_back(num_bytes: int) -> None:
    assert Size.parse(str(Size(num_bytes))) == num_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:7421", HostPort("127.0.0.1", 7421)),
        ("[::1]:0", HostPort("::1", 0)),
        ("node-3:65535", HostPort("node-3", 65535)),
    ],
)
def test_address_reads_back(text: str, expected: HostPort) -> None:
    assert HostPort.parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "::1:80", "h:65536", "h:-1", "h:²"])
def test_address_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        HostPort.parse(text)


def test_secret_shows_itself_only_when_asked() -> None:
    secret = Secret.parse("hunter2")
    assert "hunter2" not in f"{secret} {secret!r}"
    assert secret.reveal() == "hunter2"
