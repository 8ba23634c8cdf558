"""Requests on the memory itself, and on the daemon."""

from __future__ import annotations

from ... import wire
from ...errors import InvalidRequest
from ..answers import Outgoing
from ..peer import Peer


def map_segment(peer: Peer, message: wire.MapSegment) -> Outgoing:
    """Passes the descriptor with the reply: read-only, or writable for a segment of the client's
    own."""
    if not peer.shared_memory:
        raise InvalidRequest(
            "this connection shares no memory with the store (another machine, container or boot); "
            "use Get, Read and Write"
        )
    sizes = peer.store.segment_sizes
    if not 0 <= message.segment < len(sizes):
        raise InvalidRequest(f"segment {message.segment}; the pool has {len(sizes)}")
    if message.writable:
        descriptor = peer.store.writable_descriptor(message.segment, peer.client)
    else:
        descriptor = peer.store.readable_descriptor(message.segment)
    return Outgoing(
        wire.SegmentReply(message.segment, sizes[message.segment], message.writable),
        descriptors=(descriptor,),
    )


def release_segment(peer: Peer, message: wire.ReleaseSegment) -> wire.Ok:
    peer.store.release_segment(peer.client, message.segment)
    return wire.Ok()


def get_stats(peer: Peer, message: wire.GetStats) -> wire.StatsReply:
    return wire.StatsReply(peer.stats())
