"""Keys as text: what is accepted means exactly one key, what is not is named."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore.daemon.admin.keys import (
    TextKey,
    parse_key,
    parse_key_prefix,
    parse_namespace,
)
from moontide.kvstore.errors import InvalidRequest


@given(st.binary(min_size=1, max_size=200))
def test_any_string_key_survives_percent_encoding(key: bytes) -> None:
    assert parse_key("s:" + quote(key, safe="")) == TextKey(False, key)


@given(st.binary(min_size=16, max_size=16))
def test_block_keys_are_hex(key: bytes) -> None:
    assert parse_key("kv:" + key.hex()) == TextKey(True, key)
    assert parse_key_prefix("kv:" + key[:3].hex()) == TextKey(True, key[:3])


@pytest.mark.parametrize(
    "text", ["", "a", "kv", "s:", "x:00", "kv:0", "kv:zz", "kv:00", "kv:" + "00" * 17]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_key(text)


@given(st.text(max_size=40))
def test_no_text_breaks_the_parser(text: str) -> None:
    for prefix in ("", "kv:", "s:"):
        try:
            parse_key(prefix + text)
        except InvalidRequest:
            continue


def test_namespaces_are_digests_or_string_entries_or_everything() -> None:
    assert parse_namespace(None) is None
    assert parse_namespace("") == b""
    assert parse_namespace("ab" * 32) == bytes.fromhex("ab" * 32)
    with pytest.raises(InvalidRequest, match="31 bytes"):
        parse_namespace("ab" * 31)
