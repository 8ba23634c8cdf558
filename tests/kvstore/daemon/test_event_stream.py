"""The event stream: snapshot, mark, then every event once and in order, or its end."""

from __future__ import annotations

import asyncio

import msgspec

from moontide.kvstore.daemon.admin.event_stream import kv_events
from moontide.kvstore.events import KvEvent, SnapshotBegin
from moontide.kvstore.service import ServerEvent
from moontide.kvstore.store import EventLog
from moontide.kvstore.store.event_log import MAX_EVENTS, Holding

TIMEOUT_SECONDS = 5.0


def make_log() -> EventLog:
    return EventLog(lambda: [Holding("n/1/00", "dram", "", [b"sa", b"sb"])])


def publish(log: EventLog, entry: bytes) -> None:
    log.publish("stored", instance="n/1/00", tier="dram", entries=[entry])


def kv(event: ServerEvent) -> KvEvent:
    assert event.event == "kv"
    return msgspec.json.decode(event.data, type=KvEvent)


def test_snapshot_then_mark_then_live_events_without_a_gap() -> None:
    async def run() -> None:
        log = make_log()
        publish(log, b"sa")
        publish(log, b"sb")
        events = kv_events(log, "n/1/00")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            first = await anext(events)
            assert msgspec.json.decode(first.data, type=SnapshotBegin) == SnapshotBegin("n/1/00", 2)
            stored = kv(await anext(events))
            assert (stored.seq, stored.entries) == (2, (b"sa".hex(), b"sb".hex()))
            publish(log, b"sc")  # while the snapshot is still being read
            mark = await anext(events)
            assert (mark.event, mark.data) == ("live", b'{"seq":2}')
            assert kv(await anext(events)).seq == 3
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
            publish(log, b"sd")
            assert kv(await waiting).seq == 4
        await events.aclose()

    asyncio.run(run())


def test_a_reader_that_falls_behind_the_ring_is_sent_back_to_a_snapshot() -> None:
    async def run() -> None:
        log = make_log()
        events = kv_events(log, "n/1/00")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await anext(events)).event != "live":
                pass
            for _ in range(MAX_EVENTS + 1):
                publish(log, b"sc")
            assert [event async for event in events] == []

    asyncio.run(run())
