"""Requests on KV blocks: namespaces, writing, engines' own caches."""

from __future__ import annotations

from itertools import compress
from typing import cast

from ... import wire
from ...errors import InvalidRequest, LayoutMismatch
from ...keys import BLOCK_KEY_BYTES, EntryId, Namespace
from ...layout import Group, Kind, KVLayout
from ...types import ReserveStatus
from ..peer import Peer
from . import checks
from .entries import LEAST_TTL_SECONDS, check_wanted_replicas, reserved_reply

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
    check_wanted_replicas(peer, message.replicas)  # too few stores now: made once there are more
    if message.replicas > 1 and message.request_scoped:
        raise InvalidRequest("replicas of a request-scoped block; nobody else finds one: ask for 1")
    results = peer.store.reserve_blocks(
        peer.owner,
        message.namespace,
        keys,
        message.parent,
        checks.shards(message.shards, len(keys)),
        shared_memory=peer.shared_memory,
        ttl_s=message.ttl_s,
        request_scoped=message.request_scoped,
        replicas=message.replicas,
        now=peer.clock(),
    )
    if message.replicas > 1 and peer.sources.changes is not None:
        entries = [b"k" + key + shard for key in keys for shard in message.shards]
        here = [got.status is ReserveStatus.EXISTS for got in results]
        peer.sources.changes.replicate(
            list(map(EntryId, compress(entries, here))), message.replicas
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
