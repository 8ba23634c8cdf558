"""Which workers take a request: pure functions over a frozen snapshot."""

from .route import pick_decode, route, route_resumed, route_to
from .types import (
    Candidate,
    Choice,
    Estimate,
    Exclusion,
    Reason,
    Refusal,
    Role,
    Snapshot,
    Speeds,
)

__all__ = [
    "Candidate",
    "Choice",
    "Estimate",
    "Exclusion",
    "Reason",
    "Refusal",
    "Role",
    "Snapshot",
    "Speeds",
    "pick_decode",
    "route",
    "route_resumed",
    "route_to",
]
