"""This daemon among its peers: who they are, what they hold, and bringing it here (ADR 0011)."""

from .peers import PeerReport, Peers

__all__ = ["PeerReport", "Peers"]
