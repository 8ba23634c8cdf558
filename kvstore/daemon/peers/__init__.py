"""This daemon among its peers: who they are, what they hold, and bringing it here (ADR 0011)."""

from .copies import Confirmed, Copied, keep_here
from .filling import FloorOf
from .lots import Item
from .peers import FloorsTold, PeerReport, Peers

__all__ = [
    "Confirmed",
    "Copied",
    "FloorOf",
    "FloorsTold",
    "Item",
    "PeerReport",
    "Peers",
    "keep_here",
]
