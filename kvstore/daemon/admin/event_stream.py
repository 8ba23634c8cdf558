"""`GET /v1/events`: a snapshot of what is stored, then every event after it.

    event: snapshot   SnapshotBegin
    event: kv         KvEvent, `stored`, with the snapshot's seq         (any number)
    event: live       {"seq": N}
    event: kv         KvEvent with seq N+1, N+2, …

The event log's ring is the queue: a reader that falls out of it has its stream ended and starts
again from a new snapshot, so a slow one costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from ...events import SnapshotBegin
from ...service import ServerEvent
from ...store import EventLog
from .bodies import LiveMark

_encode = msgspec.json.Encoder().encode


async def kv_events(log: EventLog, source: str) -> AsyncIterator[ServerEvent]:
    """Ends when the reader was too slow."""
    snapshot = log.snapshot()
    yield ServerEvent(_encode(SnapshotBegin(source, snapshot.seq)), "snapshot")
    for event in snapshot.events:
        yield ServerEvent(_encode(event), "kv")
    seq = snapshot.seq
    yield ServerEvent(_encode(LiveMark(seq)), "live")
    news = asyncio.Event()
    cancel = log.on_event(lambda _event: news.set())
    try:
        while (events := log.since(seq)) is not None:
            for event in events:
                yield ServerEvent(_encode(event), "kv")
                seq = event.seq
            if seq == log.seq:
                news.clear()
                await news.wait()
    finally:
        cancel()
