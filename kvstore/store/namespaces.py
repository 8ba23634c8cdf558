"""Namespaces that were opened here, and the geometry of their shards."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidRequest, OutOfSpace
from ..keys import Namespace, shard_of
from ..layout import LayerPiece, Shard, reshard

MAX_NAMESPACES = 4096
MAX_SHARDS = 1024
"""Different shards a namespace may be written or read in."""
MAX_PLANS = 4096


@dataclass(frozen=True, slots=True)
class Geometry:
    """Bytes of one entry of a shard: `num_extents` layers, `stride` apart."""

    num_bytes: int
    num_extents: int
    stride: int
    layer_bytes: int


class OpenNamespace:
    """One namespace: its number here, its shards' geometry, how stored shards cover wanted ones."""

    def __init__(self, number: int, namespace: Namespace) -> None:
        self.number = number
        self.namespace = namespace
        self.digest = namespace.digest
        self.hex = namespace.digest.hex()
        self._geometry: dict[bytes, Geometry] = {}
        self._plans: dict[tuple[tuple[bytes, ...], bytes], tuple[bytes, ...] | None] = {}
        self.stored: dict[bytes, None] = {}  # packed shards entries were reserved for, in order

    def geometry(self, packed: bytes) -> Geometry:
        """Raises LayoutMismatch when the shard reaches outside the layout."""
        known = self._geometry.get(packed)
        if known is None:
            shard = Shard.unpack(packed)
            layout, block_tokens = self.namespace.layout, self.namespace.block_tokens
            layout.check(shard)
            if len(self._geometry) >= MAX_SHARDS:
                raise OutOfSpace(
                    f"namespace {self.hex[:16]} is used in {MAX_SHARDS} different shards already"
                )
            known = self._geometry[packed] = Geometry(
                layout.entry_bytes(shard, block_tokens),
                shard.num_layers,
                layout.layer_stride(shard, block_tokens),
                layout.layer_bytes(shard, block_tokens),
            )
        return known

    def geometry_of(self, entry: bytes) -> Geometry:
        return self.geometry(shard_of(entry))

    def cover(self, stored: tuple[bytes, ...], wanted: bytes) -> tuple[bytes, ...] | None:
        """The stored shards that a reader of `wanted` needs, or None when they do not cover it."""
        plan_key = (stored, wanted)
        if plan_key not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            layers = reshard(
                self.namespace.layout,
                self.namespace.block_tokens,
                [Shard.unpack(packed) for packed in stored],
                Shard.unpack(wanted),
            )
            self._plans[plan_key] = None if layers is None else _sources(stored, layers)
        return self._plans[plan_key]


def _sources(
    stored: tuple[bytes, ...], layers: tuple[tuple[LayerPiece, ...], ...]
) -> tuple[bytes, ...]:
    used = {piece.source for layer in layers for piece in layer}
    return tuple(stored[index] for index in sorted(used))


class Namespaces:
    """Numbers begin at 1 (0 is the string entries) and are never reused."""

    def __init__(self) -> None:
        self._opened: list[OpenNamespace] = []
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def open(self, namespace: Namespace) -> int:
        number = self._numbers.get(namespace.digest)
        if number is None:
            if len(self._opened) >= MAX_NAMESPACES:
                raise OutOfSpace(f"{MAX_NAMESPACES} namespaces are open; restart the store")
            number = len(self._opened) + 1
            self._opened.append(OpenNamespace(number, namespace))
            self._numbers[namespace.digest] = number
        return number

    def get(self, number: int) -> OpenNamespace:
        if not 1 <= number <= len(self._opened):
            raise InvalidRequest(f"namespace {number} was not opened here; open it first")
        return self._opened[number - 1]

    def find(self, digest: bytes) -> OpenNamespace | None:
        number = self._numbers.get(digest)
        return None if number is None else self._opened[number - 1]

    def hex_digest(self, number: int) -> str:
        return self._opened[number - 1].hex if number else ""
