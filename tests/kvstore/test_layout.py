"""Layouts, shards and resharding, with the published vectors and a second implementation of the
canonical order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.kvstore.errors import InvalidRequest, LayoutMismatch
from moontide.kvstore.layout import Group, KVLayout, Shard, reshard

CASES = json.loads((Path(__file__).parents[1] / "data" / "layout_vectors.json").read_text())[
    "cases"
]
LAYOUT = KVLayout((Group("full", 2, 8, 4, "uint8"),))


def load_layout(fields: dict[str, Any]) -> KVLayout:
    return KVLayout(tuple(Group(**group) for group in fields["groups"]))


def canonical_bytes(layout: dict[str, Any], block_tokens: int, shard: dict[str, Any]) -> bytes:
    """`[layer][kv_head][k|v][token][dim]`, each layer padded to 64 bytes; a byte encodes its
    place."""
    group = layout["groups"][shard["group"]]
    assert group["dtype"] == "uint8"
    value_dim = group["head_dim"] if group["v_head_dim"] is None else group["v_head_dim"]
    widths = [group["head_dim"]] if group["kind"] == "latent" else [group["head_dim"], value_dim]
    data = b""
    for layer in range(*shard["layers"]):
        extent = b""
        for head in range(*shard["kv_heads"]):
            for part, width in enumerate(widths):
                for token in range(block_tokens):
                    place = 1 + layer * 83 + head * 41 + part * 19 + token * 7
                    extent += bytes((place + dim) % 251 for dim in range(width))
        data += extent + b"\0" * (-len(extent) % 64)
    return data


def assemble(
    layout: KVLayout, block_tokens: int, stored: Sequence[tuple[Shard, bytes]], wanted: Shard
) -> bytes | None:
    plan = reshard(layout, block_tokens, [shard for shard, _ in stored], wanted)
    if plan is None:
        return None
    stride = layout.layer_stride(wanted, block_tokens)
    target = bytearray(layout.entry_bytes(wanted, block_tokens))
    for layer, pieces in enumerate(plan):
        for piece in pieces:
            shard, data = stored[piece.source]
            start = piece.source_layer * layout.layer_stride(shard, block_tokens)
            start += piece.source_offset
            into = layer * stride + piece.target_offset
            target[into : into + piece.num_bytes] = data[start : start + piece.num_bytes]
    return bytes(target)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_published_layouts(case: dict[str, Any]) -> None:
    layout, block_tokens = load_layout(case["layout"]), case["block_tokens"]
    for entry in [*case["stored"], *case["wanted"]]:
        shard = Shard(**entry["shard"])
        assert shard.pack().hex() == entry["packed"]
        assert Shard.unpack(bytes.fromhex(entry["packed"])) == shard
        assert layout.layer_bytes(shard, block_tokens) == entry["layer_bytes"]
        assert layout.layer_stride(shard, block_tokens) == entry["layer_stride"]
        assert entry["bytes"] == canonical_bytes(case["layout"], block_tokens, entry["shard"]).hex()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_resharding_moves_the_published_bytes(case: dict[str, Any]) -> None:
    layout = load_layout(case["layout"])
    stored = [(Shard(**item["shard"]), bytes.fromhex(item["bytes"])) for item in case["stored"]]
    for entry in case["wanted"]:
        data = assemble(layout, case["block_tokens"], stored, Shard(**entry["shard"]))
        assert (data is not None) == entry["covered"]
        assert data is None or data.hex() == entry["bytes"]


@given(st.lists(st.integers(1, 7), unique=True, max_size=7), st.data())
def test_any_split_of_heads_can_be_read_by_any_other(cuts: list[int], data: st.DataObject) -> None:
    borders = [0, *sorted(cuts), 8]
    stored = [Shard(0, (0, 2), (low, high)) for low, high in pairwise(borders)]
    low = data.draw(st.integers(0, 7))
    wanted = Shard(0, (0, 2), (low, data.draw(st.integers(low + 1, 8))))
    fields: dict[str, Any] = {
        "groups": [
            {"kind": "full", "head_dim": 4, "v_head_dim": None, "dtype": "uint8"},
        ]
    }

    def content(shard: Shard) -> bytes:
        place = {"group": 0, "layers": shard.layers, "kv_heads": shard.kv_heads}
        return canonical_bytes(fields, 2, place)

    entries = [(shard, content(shard)) for shard in stored]
    assert assemble(LAYOUT, 2, entries, wanted) == content(wanted)
    missing = data.draw(st.sampled_from(entries))
    rest = [entry for entry in entries if entry is not missing]
    low, high = missing[0].kv_heads
    overlaps = low < wanted.kv_heads[1] and wanted.kv_heads[0] < high
    assert (assemble(LAYOUT, 2, rest, wanted) is None) == overlaps


def test_layer_extents_begin_on_cache_lines() -> None:
    odd = KVLayout((Group("full", 3, 1, 5, "uint8"),))
    shard = odd.whole()[0]
    assert odd.layer_bytes(shard, 3) == 30
    assert odd.layer_stride(shard, 3) == 64
    assert odd.entry_bytes(shard, 3) == 192


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"kind": "state"}, "state.*supported"),
        ({"kind": "mamba"}, "mamba.*supported"),
        ({"dtype": "float64"}, "float64.*known"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"num_kv_heads": 70000}, "num_kv_heads is 70000.*65535"),
        ({"head_dim": -1}, "head_dim is -1"),
        ({"v_head_dim": 0}, "v_head_dim is 0"),
        ({"kind": "window"}, "window_tokens"),
        ({"window_tokens": 64}, "window_tokens"),
        ({"kind": "latent"}, "latent"),
    ],
)
def test_a_wrong_group_is_refused_by_name(fields: dict[str, Any], names: str) -> None:
    good: dict[str, Any] = {
        "kind": "full",
        "num_layers": 2,
        "num_kv_heads": 4,
        "head_dim": 8,
        "dtype": "float16",
    }
    with pytest.raises(InvalidRequest, match=names):
        Group(**good | fields)


@pytest.mark.parametrize(
    ("group", "layers", "heads"),
    [(0, (0, 0), (0, 1)), (0, (2, 1), (0, 1)), (0, (0, 1), (-1, 1)), (-1, (0, 1), (0, 1))],
)
def test_an_empty_or_negative_shard_is_refused(
    group: int, layers: tuple[int, int], heads: tuple[int, int]
) -> None:
    with pytest.raises(InvalidRequest, match="shard"):
        Shard(group, layers, heads)


@pytest.mark.parametrize(
    "shard", [Shard(1, (0, 1), (0, 1)), Shard(0, (0, 3), (0, 1)), Shard(0, (0, 1), (7, 9))]
)
def test_a_shard_outside_the_layout_is_refused(shard: Shard) -> None:
    with pytest.raises(LayoutMismatch):
        LAYOUT.check(shard)


@given(st.binary(max_size=12))
def test_unpacking_a_shard_raises_only_invalid_request(data: bytes) -> None:
    try:
        shard = Shard.unpack(data)
    except InvalidRequest:
        return
    assert shard.pack() == data


def test_packed_shards_sort_like_shards() -> None:
    shards = [Shard(0, (0, 300), (0, 1)), Shard(0, (0, 2), (0, 1)), Shard(1, (0, 1), (0, 1))]
    assert sorted(shards) == sorted(shards, key=Shard.pack)
