"""What the daemon does for each message: one small function a message type.

A handler takes the peer and the message (and the payload's size, where there is one), acts on the
store and says what to do next (answers.py). It raises StoreError to refuse; the session turns that
into a Failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import wire
from ...errors import InvalidRequest
from ..answers import Answer, Incoming
from ..peer import Peer
from . import (
    blocks,
    ending,
    entries,
    fetch,
    floors,
    lookups,
    prefetch,
    putting,
    reading,
    runs,
    segments,
    waiting,
)

_Handler = Callable[[Peer, Any], Answer]
_PayloadHandler = Callable[[Peer, Any, int], Incoming]

_HANDLERS: dict[type[wire.Request], _Handler] = {
    wire.Reserve: entries.reserve,
    wire.Advance: entries.advance,
    wire.Commit: entries.commit,
    wire.Abort: entries.abort,
    wire.Lookup: reading.lookup,
    wire.Locate: reading.locate,
    wire.Get: reading.get,
    wire.Read: reading.read,
    wire.Exists: reading.exists,
    wire.Remove: ending.remove,
    wire.Clear: ending.clear,
    wire.Unpin: ending.unpin,
    wire.RenewTicket: ending.renew,
    wire.ReportCorrupt: ending.report_corrupt,
    wire.OpenNamespace: blocks.open_namespace,
    wire.ReserveBlocks: blocks.reserve,
    wire.LookupBlocks: lookups.lookup,
    wire.FetchBlocks: fetch.fetch,
    wire.AwaitExtent: waiting.await_extent,
    wire.AwaitExtents: waiting.await_extents,
    wire.PublishHbm: blocks.publish_hbm,
    wire.MapSegment: segments.map_segment,
    wire.ReleaseSegment: segments.release_segment,
    wire.GetStats: segments.get_stats,
    wire.Prefetch: prefetch.entries,
    wire.PrefetchBlocks: prefetch.blocks,
    wire.ReadFloors: floors.read,
    wire.ReserveRun: runs.reserve,
    wire.CommitRun: runs.commit,
    wire.NoteUse: runs.note_use,
}
_SINCE_VERSION: dict[type[wire.Request], int] = {
    wire.ReserveRun: 2,
    wire.CommitRun: 2,
    wire.NoteUse: 2,
    wire.Locate: 2,
    wire.Prefetch: 2,
    wire.PrefetchBlocks: 2,
    wire.ReadFloors: 2,
}
_PAYLOAD_HANDLERS: dict[type[wire.Request], _PayloadHandler] = {
    wire.Put: putting.put,
    wire.Write: entries.write,
}


def answer(peer: Peer, message: wire.Request, payload_bytes: int) -> Answer:
    """Acts on `message`. Raises StoreError to refuse it; its payload is then drained."""
    kind = type(message)
    if peer.version < wire.WIRE_VERSION and peer.version < _SINCE_VERSION.get(kind, 0):
        raise InvalidRequest(
            f"{kind.__name__} on a connection of wire version {peer.version}; it came with "
            f"version {_SINCE_VERSION[kind]}"
        )
    if peer.drain is not None and peer.drain.is_on:
        peer.drain.check(message)
    handler = _HANDLERS.get(kind)
    if handler is not None:
        if payload_bytes:
            raise InvalidRequest(f"{kind.__name__} takes no payload; got {payload_bytes} bytes")
        return handler(peer, message)
    payload_handler = _PAYLOAD_HANDLERS.get(kind)
    if payload_handler is None:
        raise InvalidRequest(f"{kind.__name__} is only the first message of a connection")
    return payload_handler(peer, message, payload_bytes)
