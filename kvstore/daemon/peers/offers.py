"""What a peer says of blocks that it has, checked."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from ... import wire
from ...errors import InvalidRequest
from ...keys import Namespace
from ...layout import Shard
from ...types import Located, Tier

MAX_SLOT = 0xFFFFFFFF
MAX_CHECKSUM = 0xFFFFFFFFFFFFFFFF
WHOLE = Shard(0, (0, 1), (0, 1))
"""A string entry has one extent."""


class RemoteEntry(NamedTuple):
    """One entry in a peer's pool. Its first `extents` layers are complete; a checksum of 0 is not
    known yet."""

    shard: Shard
    slot: int
    generation: int
    segment: int
    offset: int
    extents: int
    tier: Tier
    checksums: Sequence[int]


Offer = list[list[RemoteEntry]]
"""Entries, block after block."""


def read_offer(reply: wire.BlocksReply, namespace: Namespace) -> Offer:
    """Raises InvalidRequest on what no store would say."""
    shards = [Shard.unpack(packed) for packed in reply.shards]
    for shard in shards:
        namespace.layout.check(shard)
    checksums = array("Q")
    if len(reply.checksums) % checksums.itemsize:
        raise InvalidRequest(f"{len(reply.checksums)} bytes of checksums; they come 8 bytes each")
    checksums.frombytes(reply.checksums)
    position = 0
    blocks: Offer = []
    for block in reply.blocks:
        entries = []
        for entry in block:
            if not 0 <= entry.shard < len(shards):
                raise InvalidRequest(f"shard {entry.shard} of {len(shards)}")
            remote = _remote_entry(entry, shards[entry.shard], checksums, position)
            position += remote.shard.num_layers
            entries.append(remote)
        if not entries or len({remote.shard for remote in entries}) < len(entries):
            raise InvalidRequest(f"{len(entries)} entries of a block: one at least, a shard once")
        blocks.append(entries)
    if position != len(checksums):
        raise InvalidRequest(f"{len(checksums)} checksums for {position} layers")
    return blocks


class RemoteString(NamedTuple):
    """A string entry of `length` bytes that a peer has; it ends there in `lifetime_s`."""

    length: int
    lifetime_s: float | None
    soft_pin: bool
    place: RemoteEntry


def read_strings(reply: wire.LookupReply, count: int) -> list[RemoteString | None]:
    """What a peer says of `count` string entries that it was asked for. Raises InvalidRequest on
    what no store would say."""
    lifetimes = reply.lifetimes or [None] * count
    soft_pins = reply.soft_pins or bytes(count)
    if not len(reply.found) == len(lifetimes) == len(soft_pins) == count:
        raise InvalidRequest(
            f"{len(reply.found)} places, {len(reply.lifetimes)} lifetimes and "
            f"{len(reply.soft_pins)} soft pins of {count} entries"
        )
    return [
        _remote_string(Located(*found), lifetime, soft_pin=bool(soft_pin)) if found else None
        for found, lifetime, soft_pin in zip(reply.found, lifetimes, soft_pins, strict=True)
    ]


def _remote_string(found: Located, lifetime_s: float | None, *, soft_pin: bool) -> RemoteString:
    entry = wire.BlockEntry(
        found.slot, found.generation, found.segment, found.offset, 0, 1, Tier.DRAM
    )
    if not 0 <= found.checksum <= MAX_CHECKSUM or found.length < 0:
        raise InvalidRequest(f"a value of {found.length} bytes, checksum {found.checksum}")
    if lifetime_s is not None and not (isfinite(lifetime_s) and lifetime_s >= 0):
        raise InvalidRequest(f"lifetime {lifetime_s}")
    place = _remote_entry(entry, WHOLE, array("Q", [found.checksum]), 0)
    return RemoteString(found.length, lifetime_s, soft_pin, place)


def _remote_entry(
    entry: wire.BlockEntry, shard: Shard, checksums: array[int], position: int
) -> RemoteEntry:
    for name, value in (("slot", entry.slot), ("generation", entry.generation)):
        if not 0 <= value <= MAX_SLOT:
            raise InvalidRequest(f"{name} is {value}; it must lie in 0..{MAX_SLOT}")
    if entry.segment < 0 or entry.offset < 0 or not 0 <= entry.extents <= shard.num_layers:
        raise InvalidRequest(
            f"segment {entry.segment}, offset {entry.offset}, {entry.extents} of "
            f"{shard.num_layers} layers"
        )
    if entry.tier not in (Tier.DRAM, Tier.NVME):
        raise InvalidRequest(f"tier {entry.tier!r}; a store has {Tier.DRAM} and {Tier.NVME}")
    return RemoteEntry(
        shard=shard,
        slot=entry.slot,
        generation=entry.generation,
        segment=entry.segment,
        offset=entry.offset,
        extents=entry.extents,
        tier=Tier(entry.tier),
        checksums=checksums[position : position + shard.num_layers],
    )
