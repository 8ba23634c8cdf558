"""Why entries end, and editions that have ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class DropReason(enum.Enum):
    EVICTED = "evicted to make room"
    EXPIRED = "its time to live ended"
    REMOVED = "removed by a user"
    MOVED = "moved to another node by an operator"
    CLEARED = "cleared by a user"
    REPLACED = "replaced by a newer value"
    CORRUPT = "its bytes did not match their checksum"
    USED = "the request it was kept for has read it"
    INVALIDATED = "the floor of its namespace was raised"


@dataclass(slots=True, eq=False)
class Retired:
    """An edition of what nobody finds any more."""

    reason: DropReason
    num_gone: int = 0
    """Entries that were found until then and have ended since, for whatever reason."""
