"""This daemon among its peers: who they are, what they hold, and bringing it here (ADR 0011)."""

from .filling import FloorOf
from .peers import FloorsTold, PeerReport, Peers

__all__ = ["FloorOf", "FloorsTold", "PeerReport", "Peers"]
