"""Requests that end something: entries, pins."""

from __future__ import annotations

from ... import wire
from ..answers import Deferred
from ..peer import Peer
from . import checks
from .durable import Removal


def remove(peer: Peer, message: wire.Remove) -> wire.CountReply | Deferred:
    """Answered once the removal is durable on disk too."""
    entries = checks.entry_ids(message.entries)
    here = peer.store.exists(entries, peer.clock())
    on_disk = peer.tiering.on_disk(entries) if peer.tiering else []
    removed = {entry for entry, is_here in zip(entries, here, strict=True) if is_here}
    reply = wire.CountReply(len(removed.union(on_disk)))
    peer.store.remove(entries, peer.clock())
    if peer.tiering is None or not on_disk:
        return reply
    removal = Removal(reply)
    peer.tiering.drop(on_disk, removal.ended)
    return removal.answer()


def clear(peer: Peer, message: wire.Clear) -> wire.CountReply | Deferred:
    """As `remove`. Counts what lay in DRAM, and of what lay only on disk nothing."""
    removed = peer.store.clear(message.namespace, message.strings_only, peer.clock())
    reply = wire.CountReply(removed)
    if peer.tiering is None:
        return reply
    removal = Removal(reply)
    namespace = message.namespace.hex() if message.namespace is not None else None
    peer.tiering.clear("" if message.strings_only else namespace, removal.ended)
    return removal.answer()


def unpin(peer: Peer, message: wire.Unpin) -> wire.Ok:
    checks.read_bytes(message.read_bytes)
    peer.store.unpin(peer.owner, message.ticket, message.read_bytes)
    return wire.Ok()


def renew(peer: Peer, message: wire.RenewTicket) -> wire.Ok:
    checks.seconds("ttl_s", message.ttl_s)
    peer.store.renew(message.ticket, message.ttl_s, peer.clock())
    return wire.Ok()


def report_corrupt(peer: Peer, message: wire.ReportCorrupt) -> wire.Ok:
    checks.reservations([message.slot], [message.generation])
    peer.store.report_corrupt(message.slot, message.generation)
    return wire.Ok()
