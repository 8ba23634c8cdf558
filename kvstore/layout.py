"""What the bytes of a block mean: groups of layers, shards of a block, and the canonical stored
order.

Stored order is `[layer][kv_head][k|v][token][head_dim]` (latent: `[layer][token][dim]`), so one
layer of one head range is contiguous and a block written at TP 2 can be read at TP 1 or 4 by
copying byte ranges. See docs/adr/0001.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from moontide.transfer.types import CACHE_LINE_BYTES, align_up

from .digest import Field, digest
from .errors import InvalidRequest, LayoutMismatch

Kind = Literal["full", "window", "latent", "state"]

DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
SUPPORTED_KINDS = ("full", "window", "latent")
MAX_GROUPS = 256
MAX_LAYERS = 65535
MAX_KV_HEADS = 65535


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one attention kind and shape. `v_head_dim` defaults to `head_dim`; `latent`
    (MLA) has one head range and no separate V; `window` needs `window_tokens`."""

    kind: Kind
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    v_head_dim: int | None = None
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in SUPPORTED_KINDS:
            raise InvalidRequest(
                f"layout group kind {self.kind!r} is not supported; "
                f"supported: {', '.join(SUPPORTED_KINDS)}"
            )
        if self.dtype not in DTYPE_BYTES:
            raise InvalidRequest(
                f"dtype {self.dtype!r} is unknown; known: {', '.join(DTYPE_BYTES)}"
            )
        bounds = {
            "num_layers": (self.num_layers, MAX_LAYERS),
            "num_kv_heads": (self.num_kv_heads, MAX_KV_HEADS),
            "head_dim": (self.head_dim, 1 << 20),
            "v_head_dim": (self.value_dim, 1 << 20),
        }
        for name, (value, bound) in bounds.items():
            if not isinstance(value, int) or not 1 <= value <= bound:
                raise InvalidRequest(f"{name} is {value}; it must lie in 1..{bound}")
        if (self.kind == "window") != (self.window_tokens is not None):
            raise InvalidRequest(
                f"kind {self.kind!r} with window_tokens={self.window_tokens}: give both or neither"
            )
        if self.kind == "latent" and (self.num_kv_heads != 1 or self.v_head_dim is not None):
            raise InvalidRequest(
                "a latent group has one head range and no v_head_dim; "
                f"got num_kv_heads={self.num_kv_heads}, v_head_dim={self.v_head_dim}"
            )

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def head_bytes(self, block_tokens: int) -> int:
        """Bytes of one layer of one kv head of one block: K then V (latent: the latent once)."""
        width = self.head_dim if self.kind == "latent" else self.head_dim + self.value_dim
        return block_tokens * width * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The hand-over contract between two engines: both ends compare `digest` before a byte
    moves."""

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not 1 <= len(self.groups) <= MAX_GROUPS:
            raise InvalidRequest(
                f"a layout has {len(self.groups)} groups; it must have 1..{MAX_GROUPS}"
            )

    @property
    def digest(self) -> bytes:
        """32 bytes, equal on every machine for equal layouts."""
        fields: list[Field] = [len(self.groups)]
        for group in self.groups:
            fields += [
                group.kind,
                group.num_layers,
                group.num_kv_heads,
                group.head_dim,
                group.value_dim,
            ]
            fields += [group.window_tokens or 0, group.dtype]
        return digest("moontide.layout.v1", fields)

    def whole(self) -> tuple[Shard, ...]:
        """One shard a group that covers everything: the coverage of an unsharded reader or
        writer."""
        return tuple(
            Shard(index, (0, group.num_layers), (0, group.num_kv_heads))
            for index, group in enumerate(self.groups)
        )

    def check(self, shard: Shard) -> None:
        """Raises LayoutMismatch when `shard` reaches outside the layout."""
        if shard.group >= len(self.groups):
            raise LayoutMismatch(
                f"shard names group {shard.group}; the layout has {len(self.groups)}"
            )
        group = self.groups[shard.group]
        if shard.layers[1] > group.num_layers:
            raise LayoutMismatch(
                f"shard layers {shard.layers} exceed the group's {group.num_layers} layers"
            )
        if shard.kv_heads[1] > group.num_kv_heads:
            raise LayoutMismatch(
                f"shard kv_heads {shard.kv_heads} exceed the group's {group.num_kv_heads} heads"
            )

    def layer_bytes(self, shard: Shard, block_tokens: int) -> int:
        """Bytes of one layer extent of one entry of `shard`."""
        return self.groups[shard.group].head_bytes(block_tokens) * (
            shard.kv_heads[1] - shard.kv_heads[0]
        )

    def layer_stride(self, shard: Shard, block_tokens: int) -> int:
        """Distance between layer extents in a stored entry: `layer_bytes` rounded up to a cache
        line."""
        return align_up(self.layer_bytes(shard, block_tokens), CACHE_LINE_BYTES)

    def entry_bytes(self, shard: Shard, block_tokens: int) -> int:
        return self.layer_stride(shard, block_tokens) * shard.num_layers


_SHARD = struct.Struct(">BHHHH")
SHARD_BYTES = _SHARD.size


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """(group, layer range, kv-head range) of a block, ranges half open, layers counted within the
    group."""

    group: int
    layers: tuple[int, int]
    kv_heads: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        object.__setattr__(self, "kv_heads", tuple(self.kv_heads))
        if not 0 <= self.group < MAX_GROUPS:
            raise InvalidRequest(f"shard group {self.group} must lie in 0..{MAX_GROUPS - 1}")
        for name, (start, stop) in (("layers", self.layers), ("kv_heads", self.kv_heads)):
            if not 0 <= start < stop <= 65535:
                raise InvalidRequest(
                    f"shard {name} ({start}, {stop}) must be a non-empty range within 0..65535"
                )

    @property
    def num_layers(self) -> int:
        return self.layers[1] - self.layers[0]

    def pack(self) -> bytes:
        """9 bytes, big endian, so that packed shards sort like shards."""
        return _SHARD.pack(self.group, *self.layers, *self.kv_heads)

    @classmethod
    def unpack(cls, data: bytes) -> Shard:
        """Raises InvalidRequest on a wrong length or an empty range."""
        if len(data) != SHARD_BYTES:
            raise InvalidRequest(f"a packed shard has {SHARD_BYTES} bytes; got {len(data)}")
        group, layer_start, layer_stop, head_start, head_stop = _SHARD.unpack(data)
        return cls(group, (layer_start, layer_stop), (head_start, head_stop))


@dataclass(frozen=True, slots=True)
class LayerPiece:
    """One contiguous run of bytes that a reader of `wanted` takes from stored shard `source` for
    one layer. The offset within the stored layer extent, and within the reader's layer extent."""

    source: int  # index into the stored shards
    source_layer: int  # layer extent within that stored shard
    source_offset: int
    target_offset: int
    num_bytes: int


def reshard(
    layout: KVLayout, block_tokens: int, stored: Sequence[Shard], wanted: Shard
) -> tuple[tuple[LayerPiece, ...], ...] | None:
    """How to assemble each layer of `wanted` from `stored` shards: one tuple of pieces a layer, or
    None when the stored shards do not cover it. Overlapping stored shards (replicated heads) are
    used once."""
    layers = []
    for layer in range(*wanted.layers):
        pieces = tuple(_pieces(layout, block_tokens, stored, wanted, layer))
        if sum(piece.num_bytes for piece in pieces) != layout.layer_bytes(wanted, block_tokens):
            return None
        layers.append(pieces)
    return tuple(layers)


def _pieces(
    layout: KVLayout, block_tokens: int, stored: Sequence[Shard], wanted: Shard, layer: int
) -> Iterator[LayerPiece]:
    head_bytes = layout.groups[wanted.group].head_bytes(block_tokens)
    head = wanted.kv_heads[0]
    while head < wanted.kv_heads[1]:
        reach, best = head, -1
        for index, shard in enumerate(stored):
            covers = shard.group == wanted.group and shard.layers[0] <= layer < shard.layers[1]
            if covers and shard.kv_heads[0] <= head and shard.kv_heads[1] > reach:
                reach, best = shard.kv_heads[1], index
        if best < 0:
            return
        stop = min(reach, wanted.kv_heads[1])
        yield LayerPiece(
            source=best,
            source_layer=layer - stored[best].layers[0],
            source_offset=(head - stored[best].kv_heads[0]) * head_bytes,
            target_offset=(head - wanted.kv_heads[0]) * head_bytes,
            num_bytes=(stop - head) * head_bytes,
        )
        head = stop
