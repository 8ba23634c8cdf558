"""What a user would take instead of the transfer engine."""

from __future__ import annotations

from collections.abc import Mapping

from ..peers import MOONCAKE_NEEDS, MOONCAKE_PACKAGES, Peer

PEERS: Mapping[str, Peer] = {
    "nixl": Peer("transfer.nixl", ("nixl-cu12==1.5.1",)),
    "mooncake": Peer("transfer.mooncake", MOONCAKE_PACKAGES, MOONCAKE_NEEDS),
}
