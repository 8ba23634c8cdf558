"""One store daemon's KV events into an index: subscribe, follow, and on any gap or loss subscribe
anew, with a growing pause between tries."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass

import aiohttp
import msgspec

from ..errors import InvalidRequest
from ..index import KvEvent, PrefixIndex, SnapshotBegin, StreamStatus
from ..membership import StoreRecord
from .parser import Event, EventParser, EventTooLarge

logger = logging.getLogger(__name__)

STALE_SECONDS = 10.0
"""A stream that said nothing for so long, not even its keep-alive, is given up."""
CONNECT_SECONDS = 3.0
OPEN_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.2
LAST_PAUSE_SECONDS = 5.0
TURN_SECONDS = 0.002
"""Events are taken in for so long before other work of the loop gets a turn."""
PART_BYTES = 8192
"""Parsed without a look at the clock."""
MAX_EVENT_ENTRIES = 32768
"""Of one event: about twice what any store tells at once."""
MAX_DETAIL_CHARACTERS = 300
"""Of what is told of a stream that ended: whoever answers there may have said anything."""

_SNAPSHOTS = msgspec.json.Decoder(SnapshotBegin)
_EVENTS = msgspec.json.Decoder(KvEvent)


class _Live(msgspec.Struct, frozen=True):
    seq: int


_LIVES = msgspec.json.Decoder(_Live)


class _Broken(Exception):
    """The stream cannot be followed further; the text says why."""


@dataclass(slots=True)
class FollowedStore:
    """A store daemon, and how its event stream is doing."""

    record: StoreRecord
    heard_at: float | None = None  # last byte of its events, monotonic
    detail: str = "not connected yet"


def event_session(token: str) -> aiohttp.ClientSession:
    """A session for followers; the caller closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        headers={"Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
    )


class EventFollower:
    """Tells `index` what `store` tells, as the stream named by the store's id. Whoever stops it
    drops that stream from the index."""

    def __init__(
        self, store: FollowedStore, index: PrefixIndex, session: aiohttp.ClientSession
    ) -> None:
        self._store = store
        self._index = index
        self._session = session
        self._rng = random.Random(store.record.instance)  # jitter only

    async def run(self) -> None:
        """Runs until cancelled; never raises."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            started = time.monotonic()
            try:
                await self._follow()
            except (_Broken, TimeoutError, aiohttp.ClientError, OSError) as error:
                detail = str(error)[:MAX_DETAIL_CHARACTERS]
                self._store.detail = detail or f"silent for {STALE_SECONDS:g} s"
            except Exception:  # the task boundary
                self._store.detail = "an error of ours; see the log"
                logger.exception("event_stream_failed store=%s", self._store.record.id)
            if time.monotonic() - started > LAST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            logger.warning(
                "event_stream_ended store=%s detail=%s", self._store.record.id, self._store.detail
            )
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    async def _follow(self) -> None:
        response = await self._open()
        parser = EventParser()
        try:
            while True:
                async with asyncio.timeout(STALE_SECONDS):
                    piece = await response.content.readany()
                if not piece:
                    raise _Broken("the store ended its event stream")
                self._store.heard_at = time.monotonic()
                await self._take_in(parser, piece)
        except EventTooLarge as error:
            raise _Broken(str(error)) from error
        finally:
            response.close()

    async def _take_in(self, parser: EventParser, piece: bytes) -> None:
        """In turns with what else the loop has to do, however much has been received already."""
        turn_ends = time.monotonic() + TURN_SECONDS
        for start in range(0, len(piece), PART_BYTES):
            for event in parser.feed(piece[start : start + PART_BYTES]):
                self._take(event)
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + TURN_SECONDS
        await asyncio.sleep(0)

    async def _open(self) -> aiohttp.ClientResponse:
        url = f"{self._store.record.admin_url}/v1/events"
        async with asyncio.timeout(OPEN_SECONDS):
            response = await self._session.get(url, allow_redirects=False)
        if response.status != 200:
            response.close()
            raise _Broken(f"the store answers {response.status} for its events")
        return response

    def _take(self, event: Event) -> None:
        name = self._store.record.id
        try:
            if event.name == "snapshot":
                self._begin(_SNAPSHOTS.decode(event.data))
                return
            if event.name == "live":
                status = self._index.live(name, _LIVES.decode(event.data).seq)
                self._store.detail = "live"
            elif event.name == "kv":
                status = self._index.apply(name, _read(event.data))
            else:
                return  # a newer store may tell more
        except (msgspec.DecodeError, UnicodeDecodeError, InvalidRequest) as error:
            raise _Broken(f"malformed event: {error}") from error
        if status is StreamStatus.RESYNC:
            raise _Broken("a sequence number is not the expected one: resync")

    def _begin(self, snapshot: SnapshotBegin) -> None:
        record = self._store.record
        if snapshot.source != record.instance:
            raise _Broken(
                f"registered instance {record.instance} and events are of {snapshot.source}"
            )
        self._index.begin(record.id, snapshot)
        self._store.detail = "reading the snapshot"


def _read(data: bytes) -> KvEvent:
    """Raises InvalidRequest and what the decoder raises."""
    event = _EVENTS.decode(data)
    if len(event.entries) > MAX_EVENT_ENTRIES:
        raise InvalidRequest(f"{len(event.entries)} entries, at most {MAX_EVENT_ENTRIES}")
    return event
