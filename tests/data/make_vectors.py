"""Writes the published vectors beside this file: `python tests/data/make_vectors.py`.

They pin keys, layouts and frames for every other language and version. The tests never run this:
they compare the committed files with the code and with a second implementation. Run it only to add
a case, and read the diff: a changed line is an incompatible change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from moontide.kvstore import wire
from moontide.kvstore.keys import Extra, Namespace, block_keys, kv_entry_id, string_entry_id
from moontide.kvstore.layout import Group, KVLayout, Shard, reshard

HERE = Path(__file__).parent

SMOL = KVLayout((Group("full", 30, 3, 64, "float32"),))
BASE = Namespace(
    weights_id="b3:weights", layout=SMOL, tokenizer_digest="b3:tokenizer", block_tokens=4
)
TWO_GROUPS = KVLayout(
    (
        Group("full", 2, 4, 2, "uint8"),
        Group("window", 3, 2, 4, "uint8", v_head_dim=2, window_tokens=128),
    )
)
LATENT = KVLayout((Group("latent", 2, 1, 6, "uint8"),))


def namespaces() -> Iterator[tuple[str, Namespace]]:
    """The base, then each field changed in turn."""
    yield "base", BASE
    yield "weights_id", replace(BASE, weights_id="b3:other weights")
    yield "tokenizer_digest", replace(BASE, tokenizer_digest="b3:other tokenizer")
    yield "block_tokens", replace(BASE, block_tokens=8)
    yield "rope_scaling", replace(BASE, rope_scaling="yarn:4")
    yield "adapter_digest", replace(BASE, adapter_digest="b3:adapter")
    yield "salt", replace(BASE, salt="tenant-ü")
    changes: dict[str, dict[str, Any]] = {
        "kind": {"kind": "window", "window_tokens": 4096},
        "num_layers": {"num_layers": 31},
        "num_kv_heads": {"num_kv_heads": 9},
        "head_dim": {"head_dim": 128},
        "v_head_dim": {"v_head_dim": 32},
        "dtype": {"dtype": "bfloat16"},
    }
    for name, change in changes.items():
        group = replace(SMOL.groups[0], **change)
        yield f"layout.{name}", replace(BASE, layout=KVLayout((group,)))
    yield "layout.two_groups", replace(BASE, layout=TWO_GROUPS)
    yield "layout.latent", replace(BASE, layout=LATENT)
    yield "boundary of two texts", replace(BASE, rope_scaling="b3:", adapter_digest="adapter")


def key_case(
    name: str, namespace: Namespace, tokens: Sequence[int], extra: Extra = ()
) -> dict[str, Any]:
    keys = block_keys(namespace, list(tokens), extra=extra)
    shards = namespace.layout.whole() if name == "base" else ()
    return {
        "name": name,
        "namespace": asdict(namespace),
        "layout_digest": namespace.layout.digest.hex(),
        "namespace_digest": namespace.digest.hex(),
        "token_ids": list(tokens),
        "extra": [_extra(item) for item in extra],
        "keys": [key.hex() for key in keys],
        "entry_ids": [
            {"shard": asdict(shard), "ids": [kv_entry_id(key, shard).hex() for key in keys]}
            for shard in shards
        ],
    }


def _extra(item: Any) -> dict[str, Any]:
    position, extra_id = item if isinstance(item, tuple) else (None, item)
    value = {"text": extra_id} if isinstance(extra_id, str) else {"hex": extra_id.hex()}
    return value if position is None else {"position": position, **value}


def key_cases() -> Iterator[dict[str, Any]]:
    for name, namespace in namespaces():
        yield key_case(name, namespace, range(100, 110))
    for length in (0, 1, 3, 4, 5, 7, 8, 9):
        yield key_case(f"length {length}", BASE, range(length))
    yield key_case("largest token ids", BASE, [0, 2**31, 2**32 - 1, 1, 2, 3, 4, 5])
    yield key_case("one extra id", BASE, range(9), ["image-1"])
    yield key_case("text and raw differ", BASE, range(9), [b"image-1"])
    yield key_case("extra in a later block", BASE, range(13), [(5, "image-1")])
    yield key_case("two extras in one block", BASE, range(9), [(0, "a"), (3, b"\x00b"), (8, "c")])
    yield key_case("64 tokens", replace(BASE, block_tokens=64), range(1000, 1130))


def stored_bytes(layout: KVLayout, block_tokens: int, shard: Shard) -> bytes:
    """A stored entry whose every byte encodes where it belongs, padding zero."""
    group = layout.groups[shard.group]
    parts = (
        [(0, group.head_dim)]
        if group.kind == "latent"
        else [
            (0, group.head_dim),
            (1, group.value_dim),
        ]
    )
    entry = bytearray()
    for layer in range(*shard.layers):
        extent = bytearray(
            (1 + layer * 83 + head * 41 + part * 19 + token * 7 + dim) % 251
            for head in range(*shard.kv_heads)
            for part, width in parts
            for token in range(block_tokens)
            for dim in range(width)
        )
        entry += extent.ljust(layout.layer_stride(shard, block_tokens), b"\0")
    return bytes(entry)


def layout_cases() -> Iterator[dict[str, Any]]:
    def heads(*ranges: tuple[int, int], group: int = 0, layers: tuple[int, int] = (0, 2)) -> list:
        return [Shard(group, layers, span) for span in ranges]

    whole, window = heads((0, 4)), heads((0, 2), group=1, layers=(0, 3))
    latent = heads((0, 1))
    yield layout_case("whole", TWO_GROUPS, whole, whole)
    yield layout_case("tp 2 to 1", TWO_GROUPS, heads((0, 2), (2, 4)), whole)
    quarter = heads((0, 1), (1, 2), (2, 3), (3, 4))
    yield layout_case("tp 1 to 4", TWO_GROUPS, whole, quarter)
    yield layout_case("tp 4 to 2", TWO_GROUPS, quarter, heads((0, 2), (2, 4)))
    yield layout_case("replicated heads", TWO_GROUPS, heads((0, 3), (1, 4)), whole)
    pipeline = [*heads((0, 4), layers=(0, 1)), *heads((0, 4), layers=(1, 2))]
    yield layout_case("pp 2 to 1", TWO_GROUPS, pipeline, whole)
    yield layout_case("second group, tp 2 to 1", TWO_GROUPS, _split(window[0]), window)
    yield layout_case("latent", LATENT, latent, latent)
    yield layout_case("a head is missing", TWO_GROUPS, heads((0, 2), (3, 4)), whole)
    yield layout_case("a layer is missing", TWO_GROUPS, pipeline[:1], whole)
    yield layout_case("another group", TWO_GROUPS, window, whole)


def _split(shard: Shard) -> list[Shard]:
    return [Shard(shard.group, shard.layers, (head, head + 1)) for head in range(*shard.kv_heads)]


def layout_case(
    name: str, layout: KVLayout, stored: Sequence[Shard], wanted: Sequence[Shard]
) -> dict[str, Any]:
    block_tokens = 2
    return {
        "name": name,
        "layout": asdict(layout),
        "block_tokens": block_tokens,
        "stored": [_entry(layout, block_tokens, shard) for shard in stored],
        "wanted": [
            {"covered": reshard(layout, block_tokens, stored, shard) is not None}
            | _entry(layout, block_tokens, shard)
            for shard in wanted
        ],
    }


def _entry(layout: KVLayout, block_tokens: int, shard: Shard) -> dict[str, Any]:
    return {
        "shard": asdict(shard),
        "packed": shard.pack().hex(),
        "layer_bytes": layout.layer_bytes(shard, block_tokens),
        "layer_stride": layout.layer_stride(shard, block_tokens),
        "bytes": stored_bytes(layout, block_tokens, shard).hex(),
    }


KEY, SHARD = bytes(range(16)), Shard(0, (0, 30), (0, 3)).pack()
ONE, TWO = string_entry_id("a"), string_entry_id(b"\xff\x00")


def messages() -> list[wire.Request | wire.Reply]:
    """One of every message, every field away from its default."""
    return [*_requests(), *_replies()]


def _requests() -> list[wire.Request]:
    return [
        wire.Hello(1, 1, "node/12/" + "ab" * 16, "boot", True, b"proof"),
        wire.Put([ONE, TWO], [3, 0], [1, 2**64 - 1], "replace", 1.5, True, 2),
        wire.Reserve([ONE], [65536], "error", 2.0, True, 2),
        wire.ReserveBlocks(2, KEY * 2, KEY, [SHARD], 60.0, True, 1),
        wire.Write(7, 3, 4096),
        wire.Advance([7, 8], [3, 2**32 - 1], 5, [1, 2]),
        wire.Commit([7], [3], [9]),
        wire.Abort([7, 8], [3, 4]),
        wire.Lookup([ONE, TWO], 0.0, True, 3, 2),
        wire.LookupBlocks(2, KEY, [SHARD], 10.0, True, True, 0.5, 0.25, 3, KEY),
        wire.Get([ONE, TWO]),
        wire.Read([7], [3], [29], False),
        wire.Exists([ONE], True, 3),
        wire.Remove([ONE], 10.0, ["node/1/" + "ef" * 16]),
        wire.Clear(bytes(32), True, True),
        wire.Unpin(KEY),
        wire.RenewTicket(KEY, 10.0),
        wire.MapSegment(3, True),
        wire.OpenNamespace(
            bytes(32), "w", "t", 64, "r", "a", "s", [("full", 30, 3, 64, "float32", None, None)]
        ),
        wire.AwaitExtent(7, 3, 29, 0.25),
        wire.PublishHbm(2, KEY, KEY * 2, True),
        wire.ReportCorrupt(7, 3),
        wire.ReleaseSegment(3),
        wire.GetStats(),
        wire.AwaitExtents([7, 8], [3, 4], 29, 0.25),
        wire.FetchBlocks(2, KEY * 2, [SHARD], "node/1/" + "ef" * 16, 10.0, 30.0, 1),
        wire.ReserveRun(8 << 20),
        wire.CommitRun(
            7, 3, [ONE], bytes(8), bytes([3, *bytes(7)]), bytes(range(8)), "replace", 1.5, True, 2
        ),
        wire.NoteUse(bytes([7, 0, 0, 0]), bytes([3, 0, 0, 0]), 3, [KEY]),
        wire.Prefetch([ONE, TWO], 0.5),
        wire.PrefetchBlocks(2, KEY * 2, [SHARD], 0.5),
        wire.ReadFloors(),
        wire.Locate([ONE, TWO]),
    ]


def _replies() -> list[wire.Reply]:
    located = (7, 3, 1, 4096, 512, 2**64 - 1)
    block = wire.BlockEntry(7, 3, 1, 4096, 0, 30, "dram")
    return [
        wire.Challenge(bytes(32)),
        wire.Welcome(
            1, "node/1/" + "cd" * 16, "boot", 1, True, [64 << 20], 4096, 65536, 1 << 26, 1 << 23
        ),
        wire.Ok(),
        wire.Failure("invalid_request", "no"),
        wire.PutReply([(0, ""), (2, "full")]),
        wire.Reserved([(0, 7, 3, 1, 4096, True)], "why"),
        wire.LookupReply([located, None], KEY, [2.5, None], 1, b"\x01\x00"),
        wire.BlocksReply([[block]], [SHARD], bytes(8), KEY, ["tcp"], ["node"]),
        wire.GetReply([3, -1], [1, 0]),
        wire.ExistsReply(b"\x01\x00"),
        wire.CountReply(2, b"\x01\x00"),
        wire.SegmentReply(3, 64 << 20, False),
        wire.NamespaceReply(2),
        wire.StatsReply(b"{}"),
        wire.RevokeSegment(3),
        wire.ExtentsReply(b"\x01\x00", bytes(range(16))),
        wire.RunReply(b"\x00\x02", bytes(8), bytes(8), "full"),
        wire.LocateReply(bytes([7, *bytes(7)]), bytes([3, *bytes(7)]), 1),
    ]


def wire_case(message: wire.Request | wire.Reply) -> dict[str, Any]:
    frame = wire.encode_frame(message, request_id=0x01020304, payload_bytes=5)
    return {
        "message": type(message).__name__,
        "body": _plain(msgspec.msgpack.decode(frame[wire.HEADER.size :])),
        "frame": frame.hex(),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def write(name: str, about: str, cases: Iterator[dict[str, Any]]) -> None:
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / name).write_text(f'{{"about": {json.dumps(about)},\n"cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    write("key_vectors.json", "block keys and entry ids, kvstore/keys.py", key_cases())
    write("layout_vectors.json", "canonical order and resharding, layout.py", layout_cases())
    about = "one frame of every message, request id 0x01020304, a payload of 5 bytes to follow"
    write("wire_vectors.json", about, map(wire_case, messages()))
