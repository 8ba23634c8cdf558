"""Requests on KV blocks: namespaces, prefixes, layer streams, engines' own caches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from ... import wire
from ...errors import InvalidRequest, LayoutMismatch, StoreTimeout, ViewExpired
from ...keys import BLOCK_KEY_BYTES, Namespace
from ...layout import Group, Kind, KVLayout
from ..answers import Deferred, Respond
from ..peer import Peer
from . import checks
from .entries import reserved_reply

MAX_NAME_CHARS = 1024
LEAST_WAIT_SECONDS = 0.001


def open_namespace(peer: Peer, message: wire.OpenNamespace) -> wire.NamespaceReply:
    namespace = Namespace(
        weights_id=_name("weights_id", message.weights_id),
        layout=KVLayout(tuple(_group(fields) for fields in message.groups)),
        tokenizer_digest=_name("tokenizer_digest", message.tokenizer_digest),
        block_tokens=message.block_tokens,
        rope_scaling=_name("rope_scaling", message.rope_scaling),
        adapter_digest=_name("adapter_digest", message.adapter_digest),
        salt=_name("salt", message.salt),
    )
    if namespace.digest != message.digest:
        raise LayoutMismatch(
            f"the namespace's digest is {message.digest.hex()} at the client and "
            f"{namespace.digest.hex()} here: the two run different versions of Moontide"
        )
    return wire.NamespaceReply(peer.store.open_namespace(namespace))


def reserve(peer: Peer, message: wire.ReserveBlocks) -> wire.Reserved:
    keys = checks.block_keys(message.keys)
    if len(message.parent) not in (0, BLOCK_KEY_BYTES):
        raise InvalidRequest(
            f"parent has {len(message.parent)} bytes; a block key has {BLOCK_KEY_BYTES}, "
            "the first block's parent 0"
        )
    results = peer.store.reserve_blocks(
        peer.owner,
        message.namespace,
        keys,
        message.parent,
        checks.shards(message.shards, len(keys)),
        shared_memory=peer.shared_memory,
        now=peer.clock(),
    )
    return reserved_reply(results)


def lookup(peer: Peer, message: wire.LookupBlocks) -> wire.BlocksReply:
    checks.seconds("pin_s", message.pin_s)
    keys = checks.block_keys(message.keys)
    found = peer.store.lookup_blocks(
        peer.owner,
        message.namespace,
        keys,
        checks.shards(message.coverage, len(keys)),
        message.pin_s,
        message.pending,
        peer.clock(),
    )
    return wire.BlocksReply(*found)


def await_extent(peer: Peer, message: wire.AwaitExtent) -> Deferred:
    checks.reservations([message.slot], [message.generation])
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_WAIT_SECONDS)
    what = f"extent {message.extent} of slot {message.slot}"
    ended = ViewExpired(f"{what}: the entry ended before it was complete; look it up again")
    late = StoreTimeout(f"{what} was not complete within {message.timeout_s:g} s")

    def start(respond: Respond) -> Callable[[], None]:
        def tell(complete: bool) -> None:
            respond(wire.Ok() if complete else wire.Failure(ended.code, str(ended)))

        return peer.store.watch_extent(message.slot, message.generation, message.extent, tell)

    return Deferred(message.timeout_s, start, wire.Failure(late.code, str(late)))


def await_extents(peer: Peer, message: wire.AwaitExtents) -> Deferred:
    checks.reservations(message.slots, message.generations)
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_WAIT_SECONDS)
    late = StoreTimeout(
        f"extent {message.extent} of {len(message.slots)} entries was not complete within "
        f"{message.timeout_s:g} s"
    )
    places = list(zip(message.slots, message.generations, strict=True))

    def start(respond: Respond) -> Callable[[], None]:
        complete = bytearray(len(places))
        cancels: list[Callable[[], None]] = []
        missing = len(places)

        def tell(index: int, is_complete: bool) -> None:
            nonlocal missing
            complete[index] = is_complete
            missing -= 1
            if not missing:
                respond(_extents_reply(peer, places, message.extent, bytes(complete)))

        if not places:
            respond(wire.ExtentsReply(b"", b""))
        for index, (slot, generation) in enumerate(places):
            cancels.append(
                peer.store.watch_extent(slot, generation, message.extent, partial(tell, index))
            )

        def cancel_all() -> None:
            for cancel in cancels:
                cancel()

        return cancel_all

    return Deferred(message.timeout_s, start, wire.Failure(late.code, str(late)))


def _extents_reply(
    peer: Peer, places: Sequence[tuple[int, int]], extent: int, complete: bytes
) -> wire.ExtentsReply:
    checksums = array("Q", bytes(8 * len(places)))
    for index, (slot, generation) in enumerate(places):
        if complete[index]:
            checksums[index] = peer.store.extents(slot, generation)[extent].checksum
    return wire.ExtentsReply(complete, checksums.tobytes())


def publish_hbm(peer: Peer, message: wire.PublishHbm) -> wire.Ok:
    peer.store.publish_hbm(
        peer.owner,
        message.namespace,
        checks.block_keys(message.stored),
        checks.block_keys(message.removed),
        message.cleared,
    )
    return wire.Ok()


def _group(fields: tuple[str, int, int, int, str, int | None, int | None]) -> Group:
    kind, num_layers, num_kv_heads, head_dim, dtype, v_head_dim, window_tokens = fields
    return Group(  # which checks the kind, and every number
        cast(Kind, kind), num_layers, num_kv_heads, head_dim, dtype, v_head_dim, window_tokens
    )


def _name(name: str, value: str) -> str:
    if len(value) > MAX_NAME_CHARS:
        raise InvalidRequest(
            f"{name} has {len(value)} characters; at most {MAX_NAME_CHARS}: give a digest"
        )
    return value
