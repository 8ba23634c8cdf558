"""Following other daemons' event streams into an index: the same in a store daemon (its peers) and
in the Conductor (every store). Never imported by client code (it brings aiohttp)."""

from .follower import STALE_SECONDS, EventFollower, FollowedStore, event_session
from .parser import Event, EventParser, EventTooLarge

__all__ = [
    "STALE_SECONDS",
    "Event",
    "EventFollower",
    "EventParser",
    "EventTooLarge",
    "FollowedStore",
    "event_session",
]
