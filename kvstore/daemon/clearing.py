"""Clearing at every node of a cluster, those that are away included."""

from __future__ import annotations

from .floors import FloorKeeper
from .peers import Peers


async def clear_everywhere(floors: FloorKeeper, peers: Peers, namespace: bytes | None) -> int:
    """Of a namespace (digest; b"": string entries), or everything: in force here and durable, and
    at every peer that can be reached. Others put it in force once they read the membership, those
    that are away before they serve again; until then they give no other store what lies below. How
    many entries went here. Raises like `FloorKeeper.clear`."""
    gone = await floors.clear(namespace)
    await peers.tell_floors()
    return gone
