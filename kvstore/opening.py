"""A namespace as the message that opens it, for clients and for daemons as each other's clients."""

from __future__ import annotations

from .keys import Namespace
from .wire import OpenNamespace


def namespace_message(namespace: Namespace) -> OpenNamespace:
    return OpenNamespace(
        digest=namespace.digest,
        weights_id=namespace.weights_id,
        tokenizer_digest=namespace.tokenizer_digest,
        block_tokens=namespace.block_tokens,
        rope_scaling=namespace.rope_scaling,
        adapter_digest=namespace.adapter_digest,
        salt=namespace.salt,
        groups=[
            (
                group.kind,
                group.num_layers,
                group.num_kv_heads,
                group.head_dim,
                group.dtype,
                group.v_head_dim,
                group.window_tokens,
            )
            for group in namespace.layout.groups
        ],
    )
