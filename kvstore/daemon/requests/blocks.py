"""Requests on KV blocks: namespaces, writing, engines' own caches."""

from __future__ import annotations

from typing import cast

from ... import wire
from ...errors import InvalidRequest, LayoutMismatch
from ...keys import BLOCK_KEY_BYTES, Namespace
from ...layout import Group, Kind, KVLayout
from ..peer import Peer
from . import checks
from .entries import LEAST_TTL_SECONDS, reserved_reply

MAX_NAME_CHARS = 1024


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
    checks.seconds("ttl_s", message.ttl_s, least=LEAST_TTL_SECONDS)
    results = peer.store.reserve_blocks(
        peer.owner,
        message.namespace,
        keys,
        message.parent,
        checks.shards(message.shards, len(keys)),
        shared_memory=peer.shared_memory,
        ttl_s=message.ttl_s,
        request_scoped=message.request_scoped,
        now=peer.clock(),
    )
    return reserved_reply(results)


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
