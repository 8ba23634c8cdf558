"""Prefetch: what a request that still queues will need begins to come to DRAM.

Sources reserve fills as for a lookup; nothing is pinned and nobody is waited for. Their own bounds
(fills, tasks, bytes under way) hold: what they do not take is not brought.
"""

from __future__ import annotations

from collections.abc import Iterator

from moontide.transfer.types import Priority

from ... import wire
from ...keys import EntryId, kv_entry_id
from ..peer import Peer
from ..sources import BlockSource, BlocksWanted, EntriesWanted, EntrySource
from . import checks

LEAST_SECONDS = 0.001


def entries(peer: Peer, message: wire.Prefetch) -> wire.CountReply:
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_SECONDS)
    wanted = list(dict.fromkeys(checks.string_ids(message.entries)))
    missing = peer.store.absent(wanted, peer.clock())
    deadline = peer.clock() + message.timeout_s
    coming: set[EntryId] = set()
    for source in peer.sources.entries():
        left = [entry for entry in missing if entry not in coming]
        held = [entry for entry, has in zip(left, source.holds(left), strict=True) if has]
        coming.update(held)
        _bring(source, held, deadline)
    return wire.CountReply(len(wanted) - len(missing) + len(coming))


def blocks(peer: Peer, message: wire.PrefetchBlocks) -> wire.CountReply:
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_SECONDS)
    keys = checks.block_keys(message.keys)
    coverage = checks.shards(message.coverage, len(keys))
    namespace = message.namespace
    if 1 < message.replicas <= wire.MAX_REPLICAS and peer.sources.changes is not None:
        entries = [kv_entry_id(key, shard) for key in keys for shard in coverage]
        peer.sources.changes.take_replicas(entries, message.replicas)
    peer.store.touch_blocks(namespace, keys, coverage, peer.clock())
    deadline = peer.clock() + message.timeout_s
    wanted = BlocksWanted(namespace, keys, coverage, deadline, Priority.BACKGROUND)
    _ask_next(peer, wanted, iter(peer.sources.blocks()))
    missing = peer.store.missing(namespace, keys, coverage)
    return wire.CountReply(missing[0] if missing else len(keys))


def _bring(source: EntrySource, held: list[EntryId], deadline: float) -> None:
    if held:
        source.bring(EntriesWanted(held, deadline, Priority.BACKGROUND), _nobody_waits)


def _ask_next(peer: Peer, wanted: BlocksWanted, left: Iterator[BlockSource]) -> None:
    """Runs again when a source has done what it can."""
    source = next(left, None)
    if source is not None and peer.clock() < wanted.deadline:
        source.prepare(wanted, lambda: _ask_next(peer, wanted, left))


def _nobody_waits() -> None:
    """What was to be brought is here, or did not come."""
