"""Which way the bytes take, in which order, and what happens when a way breaks."""

from .breaker import BreakerLimits
from .engine import TransferEngine
from .latency import BOUNDS_SECONDS, Latencies, Latency
from .overtaking import Overtaking
from .tcp import tcp_engine
from .types import ANYWHERE, EngineLimits, Location, Rail, RailName, RailRanks

__all__ = [
    "ANYWHERE",
    "BOUNDS_SECONDS",
    "BreakerLimits",
    "EngineLimits",
    "Latencies",
    "Latency",
    "Location",
    "Overtaking",
    "Rail",
    "RailName",
    "RailRanks",
    "TransferEngine",
    "tcp_engine",
]
