"""Namespaces that were opened here, and the geometry of their shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..digest import digest
from ..errors import InvalidRequest, OutOfSpace
from ..keys import Namespace, shard_of
from ..layout import LayerPiece, Shard, reshard

MAX_NAMESPACES = 4096
MAX_NUMBERS = (1 << 16) - 1
"""What the catalog's column of them can hold."""
MAX_SHARDS = 1024
"""Different shards a namespace may be written or read in."""
MAX_PLANS = 4096


def tenant_digest(salt: str) -> str:
    """What a tenant is called: a digest of its salt, which is never shown."""
    return digest("moontide.tenant.v1", [salt])[:16].hex()


@dataclass(frozen=True, slots=True)
class Geometry:
    """Bytes of one entry of a shard: `num_extents` layers, `stride` apart."""

    num_bytes: int
    num_extents: int
    stride: int
    layer_bytes: int


class OpenNamespace:
    """One namespace: its number here, its shards' geometry, how stored shards cover wanted ones.

    `number` is what clients know it by, for good. Entries carry its `edition`, a number that is
    replaced when the namespace's floor is raised: what carries an older one is found no more."""

    def __init__(self, number: int, namespace: Namespace) -> None:
        self.number = self.edition = number
        self.namespace = namespace
        self.digest = namespace.digest
        self.hex = namespace.digest.hex()
        self.tenant = tenant_digest(namespace.salt)
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
    """Numbers begin at 1 (0 is the string entries). That of a namespace is never reused; one that
    was only an edition is, once no entry carries it."""

    def __init__(self) -> None:
        self._by_number: list[OpenNamespace | None] = []  # None: an edition of string entries
        self._opened: dict[bytes, OpenNamespace] = {}
        self._spare: list[int] = []  # numbers of swept editions

    def __len__(self) -> int:
        return len(self._opened)

    def __iter__(self) -> Iterator[OpenNamespace]:
        return iter(self._opened.values())

    def open(self, namespace: Namespace) -> int:
        opened = self._opened.get(namespace.digest)
        if opened is None:
            if len(self._opened) >= MAX_NAMESPACES:
                raise OutOfSpace(f"{MAX_NAMESPACES} namespaces are open; restart the store")
            opened = OpenNamespace(len(self._by_number) + 1, namespace)
            self._check_new(1)
            self._by_number.append(opened)
            self._opened[namespace.digest] = opened
        return opened.number

    def renew(self, opened: OpenNamespace) -> int:
        """Gives the namespace another edition; returns the one that is over. Raises OutOfSpace
        (retry later) while too many old editions wait to be swept."""
        over, opened.edition = opened.edition, self._new_edition(opened)
        return over

    def renew_strings(self) -> int:
        """A new edition for string entries. Raises like `renew`."""
        return self._new_edition(None)

    def check_room(self, count: int) -> None:
        """Raises like `renew` when there are no numbers for so many editions more."""
        self._check_new(count - len(self._spare))

    def _new_edition(self, opened: OpenNamespace | None) -> int:
        self.check_room(1)
        if self._spare:
            number = self._spare.pop()
            self._by_number[number - 1] = opened
        else:
            self._by_number.append(opened)
            number = len(self._by_number)
        return number

    def swept(self, edition: int) -> None:
        """No entry carries it any more."""
        if not edition:
            return  # string entries' first has no number to give back
        opened = self._by_number[edition - 1]
        if opened is None or edition != opened.number:
            self._spare.append(edition)

    def get(self, number: int) -> OpenNamespace:
        """By its number or any edition that entries carry."""
        opened = self._by_number[number - 1] if 1 <= number <= len(self._by_number) else None
        if opened is None:
            raise InvalidRequest(f"namespace {number} was not opened here; open it first")
        return opened

    def find(self, digest: bytes) -> OpenNamespace | None:
        return self._opened.get(digest)

    def tenants(self) -> list[str]:
        """Of each number, from 1 on; "": string entries have none."""
        return [opened.tenant if opened is not None else "" for opened in self._by_number]

    def hex_digest(self, number: int) -> str:
        """ "": of string entries."""
        opened = self._by_number[number - 1] if number else None
        return opened.hex if opened is not None else ""

    def _check_new(self, count: int) -> None:
        if len(self._by_number) + count > MAX_NUMBERS:
            raise OutOfSpace(
                f"{MAX_NUMBERS} namespaces and editions of them are in use; retry later"
            )
