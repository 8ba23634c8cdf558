"""Where a clear takes effect."""

from __future__ import annotations

from typing import Literal, get_args

from .. import wire
from ..errors import InvalidRequest

ClearedNodes = Literal["all", "this"]
"""Of the cluster, or the daemon's own."""


def clear_message(nodes: ClearedNodes) -> wire.Clear:
    """Raises InvalidRequest."""
    if nodes not in get_args(ClearedNodes):
        raise InvalidRequest(f"nodes is {nodes!r}; give one of {', '.join(get_args(ClearedNodes))}")
    return wire.Clear(local_only=nodes == "this")
