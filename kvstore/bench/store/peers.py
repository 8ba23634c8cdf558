"""What a user would take instead of the store."""

from __future__ import annotations

from collections.abc import Mapping

from ..peers import MOONCAKE_NEEDS, MOONCAKE_PACKAGES, Peer

PEERS: Mapping[str, Peer] = {
    "mooncake": Peer(
        "store.mooncake",
        MOONCAKE_PACKAGES,
        MOONCAKE_NEEDS,
    ),
    "redis": Peer(
        "store.redis",
        ("redis==8.1.0", "hiredis==3.5.0"),
        "apt-get install redis-server",
        most_call_bytes=128 << 20,
        keeps_values=True,
    ),
    "lmcache": Peer("store.lmcache", ("lmcache==0.5.6", "torch==2.13.0")),
}
