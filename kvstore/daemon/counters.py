"""What the daemon counts about its connections (the store counts its own)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

CloseReason = Literal["closed", "malformed", "stalled", "denied", "exited", "error", "shutdown"]
RefuseReason = Literal["clients", "accept"]


@dataclass(slots=True)
class TransportCounters:
    """What went over one transport, seen from this node's DRAM: raw bytes of layer extents, before
    compression and headers."""

    bytes_in: int = 0
    bytes_out: int = 0
    slices_done: int = 0
    slices_failed: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since start; every key comes from a small closed set."""

    connections: int = 0
    requests: Counter[str] = field(default_factory=Counter)  # by message type
    failures: Counter[str] = field(default_factory=Counter)  # by error code
    closed: Counter[str] = field(default_factory=Counter)  # by CloseReason
    refused: Counter[str] = field(default_factory=Counter)  # by RefuseReason
    internal_errors: int = 0
    disk: TransportCounters = field(default_factory=TransportCounters)
