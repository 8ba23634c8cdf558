"""The published key vectors against the code, and against a second implementation written from the
docstrings of keys.py, digest.py and layout.py alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from moontide.kvstore.keys import Namespace, block_keys, kv_entry_id
from moontide.kvstore.layout import Group, KVLayout, Shard

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "key_vectors.json").read_text())["cases"]


def text(value: str) -> bytes:
    return b"\x01" + struct.pack("<Q", len(value.encode())) + value.encode()


def raw(value: bytes) -> bytes:
    return b"\x02" + struct.pack("<Q", len(value)) + value


def integer(value: int) -> bytes:
    return b"\x03" + struct.pack("<QQ", 8, value)


def layout_digest(layout: dict[str, Any]) -> bytes:
    data = text("moontide.layout.v1") + integer(len(layout["groups"]))
    for group in layout["groups"]:
        value_dim = group["v_head_dim"]
        data += text(group["kind"]) + integer(group["num_layers"]) + integer(group["num_kv_heads"])
        data += integer(group["head_dim"])
        data += integer(group["head_dim"] if value_dim is None else value_dim)
        data += integer(group["window_tokens"] or 0) + text(group["dtype"])
    return blake3(data).digest()


def namespace_digest(namespace: dict[str, Any]) -> bytes:
    data = text("moontide.namespace.v1") + text(namespace["weights_id"])
    data += raw(layout_digest(namespace["layout"])) + text(namespace["tokenizer_digest"])
    data += integer(namespace["block_tokens"]) + text(namespace["rope_scaling"])
    data += text(namespace["adapter_digest"]) + text(namespace["salt"])
    return blake3(data).digest()


def keys_of(case: dict[str, Any]) -> list[str]:
    size, tokens = case["namespace"]["block_tokens"], case["token_ids"]
    keys, parent = [], b""
    for start in range(0, len(tokens) - size + 1, size):
        extras = [
            text(extra["text"]) if "text" in extra else raw(bytes.fromhex(extra["hex"]))
            for extra in case["extra"]
            if start <= extra.get("position", 0) < start + size
        ]
        data = text("moontide.block.v1") + raw(namespace_digest(case["namespace"])) + raw(parent)
        data += b"\x04" + struct.pack("<Q", 4 * size)
        data += struct.pack(f"<{size}I", *tokens[start : start + size])
        data += integer(len(extras)) + b"".join(extras)
        parent = blake3(data).digest()[:16]
        keys.append(parent.hex())
    return keys


def entry_id(key: str, shard: dict[str, Any]) -> str:
    packed = struct.pack(">BHHHH", shard["group"], *shard["layers"], *shard["kv_heads"])
    return (b"k" + bytes.fromhex(key) + packed).hex()


def load_namespace(fields: dict[str, Any]) -> Namespace:
    layout = KVLayout(tuple(Group(**group) for group in fields["layout"]["groups"]))
    return Namespace(**fields | {"layout": layout})


def load_extra(extra: dict[str, Any]) -> Any:
    value = extra["text"] if "text" in extra else bytes.fromhex(extra["hex"])
    return (extra["position"], value) if "position" in extra else value


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_r30_published_keys(case: dict[str, Any]) -> None:
    namespace = load_namespace(case["namespace"])
    extra = [load_extra(item) for item in case["extra"]]
    keys = block_keys(namespace, case["token_ids"], extra=extra)
    assert namespace.layout.digest.hex() == case["layout_digest"]
    assert namespace.digest.hex() == case["namespace_digest"]
    assert [key.hex() for key in keys] == case["keys"]
    for item in case["entry_ids"]:
        assert [kv_entry_id(key, Shard(**item["shard"])).hex() for key in keys] == item["ids"]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_a_second_implementation_agrees(case: dict[str, Any]) -> None:
    assert layout_digest(case["namespace"]["layout"]).hex() == case["layout_digest"]
    assert namespace_digest(case["namespace"]).hex() == case["namespace_digest"]
    assert keys_of(case) == case["keys"]
    for item in case["entry_ids"]:
        assert [entry_id(key, item["shard"]) for key in case["keys"]] == item["ids"]


def test_r30_no_two_namespaces_share_a_digest_or_a_key() -> None:
    digests: dict[str, str] = {}
    for case in VECTORS:
        first = digests.setdefault(case["namespace_digest"], json.dumps(case["namespace"]))
        assert first == json.dumps(case["namespace"])
    fields = [case for case in VECTORS if case["token_ids"] == list(range(100, 110))]
    keys = [key for case in fields for key in case["keys"]]
    assert len(fields) >= 16
    assert len(set(keys)) == len(keys)
