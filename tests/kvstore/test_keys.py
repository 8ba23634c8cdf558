"""Block keys, namespaces and entry ids: what they depend on, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import (
    MAX_STRING_KEY_BYTES,
    Namespace,
    block_keys,
    kv_entry_id,
    split_kv_entry_id,
    string_entry_id,
    string_entry_ids,
)
from moontide.kvstore.layout import Group, KVLayout, Shard

LAYOUT = KVLayout((Group("full", 4, 8, 16, "float16"),))
NAMESPACE = Namespace(weights_id="w", layout=LAYOUT, tokenizer_digest="t", block_tokens=4)


def test_only_full_blocks_have_keys() -> None:
    for length in range(14):
        assert len(block_keys(NAMESPACE, list(range(length)))) == length // 4


def test_r03_a_partial_block_is_never_a_full_one() -> None:
    """Prompts of every length around a border share exactly their full blocks."""
    full = block_keys(NAMESPACE, list(range(12)))
    for length in range(7, 14):
        tokens = [*range(length), *[999] * 4]
        keys = block_keys(NAMESPACE, tokens)
        shared = min(length // 4, 3)
        assert len(block_keys(NAMESPACE, list(range(length)))) == length // 4
        assert keys[:shared] == full[:shared]
        assert not set(keys[shared:]) & set(full)


def test_a_key_depends_on_every_token_before_it() -> None:
    base = block_keys(NAMESPACE, list(range(12)))
    for position in range(12):
        tokens = list(range(12))
        tokens[position] += 1000
        changed = block_keys(NAMESPACE, tokens)
        first = position // 4
        assert changed[:first] == base[:first]
        assert not set(changed[first:]) & set(base[first:])


def test_r30_shards_differ_keys_do_not() -> None:
    """TP and PP rank and size change the shard of an entry id, never the key."""
    (key,) = block_keys(NAMESPACE, list(range(4)))
    shards = [
        Shard(0, layers, heads)
        for layers in ((0, 4), (0, 2), (2, 4))
        for heads in ((0, 8), (0, 4), (4, 8), (0, 2))
    ]
    ids = [kv_entry_id(key, shard) for shard in shards]
    assert len(set(ids)) == len(shards)
    assert {split_kv_entry_id(entry)[0] for entry in ids} == {key}
    assert [split_kv_entry_id(entry)[1] for entry in ids] == shards


def test_r30_each_field_of_a_namespace_changes_every_key() -> None:
    changes = {
        "weights_id": "w2",
        "tokenizer_digest": "t2",
        "rope_scaling": "yarn",
        "adapter_digest": "lora",
        "salt": "tenant",
        "layout": KVLayout((replace(LAYOUT.groups[0], dtype="bfloat16"),)),
    }
    base = set(block_keys(NAMESPACE, list(range(12))))
    for name, value in changes.items():
        other = replace(NAMESPACE, **{name: value})
        assert not base & set(block_keys(other, list(range(12)))), name


PRINT_KEYS = """
from moontide.kvstore.keys import Namespace, block_keys
from moontide.kvstore.layout import Group, KVLayout
layout = KVLayout((Group("full", 4, 8, 16, "float16"),))
namespace = Namespace(weights_id="w", layout=layout, tokenizer_digest="t", block_tokens=4)
keys = block_keys(namespace, list(range(64)), extra=["image", (9, b"other")])
print(" ".join(key.hex() for key in keys))
"""


def interpreters() -> list[str]:
    """This Python and every other one here that has what the key code imports."""
    found = [sys.executable]
    for minor in range(11, 16):
        path = shutil.which(f"python3.{minor}")
        if path and subprocess.run([path, "-c", PRINT_KEYS], capture_output=True).returncode == 0:
            found.append(path)
    return found


def test_r33_keys_are_equal_in_every_interpreter() -> None:
    outputs = {
        subprocess.run(
            [python, "-c", PRINT_KEYS],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
        for python in interpreters()
        for seed in ("0", "4242")
    }
    assert len(outputs) == 1
    expected = block_keys(NAMESPACE, list(range(64)), extra=["image", (9, b"other")])
    assert outputs.pop().split() == [key.hex() for key in expected]


def test_sequences_and_arrays_of_any_integer_type_are_the_same_tokens() -> None:
    tokens = [0, 1, 2, 3, 2**31, 5, 6, 7]
    expected = block_keys(NAMESPACE, tokens)
    assert block_keys(NAMESPACE, tuple(tokens)) == expected
    for dtype in (np.int64, np.uint64, np.uint32, np.dtype(">u4")):
        assert block_keys(NAMESPACE, np.array(tokens, dtype=dtype)) == expected


def test_extra_ids_change_their_block_and_all_later_ones() -> None:
    base = block_keys(NAMESPACE, list(range(12)))
    keys = block_keys(NAMESPACE, list(range(12)), extra=[(5, "image")])
    assert keys[0] == base[0]
    assert not set(keys[1:]) & set(base)
    raw = block_keys(NAMESPACE, list(range(12)), extra=[(5, b"image")])
    assert not set(raw[1:]) & set(keys[1:])


@pytest.mark.parametrize(
    "tokens", [[-1], [2**32], [1.5, "x"], [1.5], [True], [[1, 2]], [2**80], ["a"]]
)
def test_bad_token_ids_are_refused(tokens: list[object]) -> None:
    with pytest.raises(InvalidRequest, match=r"token ids"):
        block_keys(NAMESPACE, tokens)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("position", [-1, 5, 100])
def test_an_extra_id_outside_the_prompt_is_refused(position: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"position {position}.*5 tokens"):
        block_keys(NAMESPACE, list(range(5)), extra=[(position, "x")])


def test_namespace_without_weights_or_block_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="weights_id"):
        replace(NAMESPACE, weights_id="")
    with pytest.raises(InvalidRequest, match="block_tokens is 0"):
        replace(NAMESPACE, block_tokens=0)


def test_a_namespace_of_wrong_types_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="weights_id is 5; give text"):
        replace(NAMESPACE, weights_id=5)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest, match="salt is None; give text"):
        replace(NAMESPACE, salt=None)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest, match=r"block_tokens is 1\.5"):
        replace(NAMESPACE, block_tokens=1.5)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest, match=r"num_kv_heads is 1\.5"):
        replace(NAMESPACE.layout.groups[0], num_kv_heads=1.5)  # type: ignore[arg-type]  # wrong on purpose


def test_string_keys_are_the_same_as_text_and_as_bytes() -> None:
    assert string_entry_id("ü") == string_entry_id("ü".encode()) == b"s\xc3\xbc"


@pytest.mark.parametrize("size", [0, MAX_STRING_KEY_BYTES + 1])
def test_string_keys_of_a_wrong_length_are_refused(size: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"{size} bytes.*{MAX_STRING_KEY_BYTES}"):
        string_entry_id("k" * size)
    with pytest.raises(InvalidRequest, match=rf"{size} bytes.*{MAX_STRING_KEY_BYTES}"):
        string_entry_ids(["a", "k" * size])


@pytest.mark.parametrize("key", [5, 10**12, None, ["a"], [1, 2], "\udc80"])
def test_string_keys_that_are_neither_text_nor_bytes_are_refused(key: object) -> None:
    with pytest.raises(InvalidRequest, match="neither bytes nor UTF-8 text"):
        string_entry_id(key)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidRequest, match="neither bytes nor UTF-8 text"):
        string_entry_ids(["a", key])  # type: ignore[list-item]  # wrong on purpose


@given(st.lists(st.text("as\n\0ü", min_size=1, max_size=4) | st.binary(min_size=1, max_size=4)))
def test_many_string_keys_become_what_each_becomes(keys: list[str | bytes]) -> None:
    assert string_entry_ids(keys) == [string_entry_id(key) for key in keys]


@given(st.binary(max_size=64))
def test_splitting_an_entry_id_raises_only_invalid_request(data: bytes) -> None:
    try:
        key, shard = split_kv_entry_id(data)  # type: ignore[arg-type]  # wrong on purpose
    except InvalidRequest:
        return
    assert kv_entry_id(key, shard) == data
