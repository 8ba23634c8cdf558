"""Asking the daemon to bring entries to DRAM before they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import wire
from ..errors import InvalidRequest
from ..keys import BlockKey, EntryId
from .batches import batches
from .blocks.desk import JobDesk
from .connections.link import Link
from .deadline import Deadline

PREFETCH_VERSION = 2
"""Of the wire. An older daemon is not asked."""
PrefetchTier = Literal["dram"]


def check_tier(tier: str) -> None:
    if tier != "dram":
        raise InvalidRequest(f"tier is {tier!r}; prefetch brings entries to dram")


def prefetch_entries(link: Link, entries: Sequence[EntryId], deadline: Deadline) -> int:
    """How many are in DRAM or on their way; 0 from a daemon that does not know the request."""
    if link.open(deadline).version < PREFETCH_VERSION:
        return 0
    count = 0
    for part in batches(entries):
        message = wire.Prefetch(list(entries[part]), deadline.check("prefetch"))
        reply = link.ask(message, deadline).reply
        assert isinstance(reply, wire.CountReply)
        count += reply.count
    return count


def prefetch_blocks(
    desk: JobDesk, keys: Sequence[BlockKey], shards: Sequence[bytes], timeout_s: float
) -> None:
    """Told, not asked: nothing is waited for. A daemon that is away, or too old, does nothing."""
    namespace, attachment = desk.namespace_id, desk.channel.attachment
    if namespace is None or attachment is None or attachment.version < PREFETCH_VERSION:
        return
    part = keys[: wire.MAX_KEYS // len(shards)]
    if part:
        desk.tell(wire.PrefetchBlocks(namespace, b"".join(part), list(shards), timeout_s))
