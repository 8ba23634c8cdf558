"""The way to one peer's data port, kept open.

    DOWN ──connected, the instance is the registered one──► UP ──silent──► SUSPECT ──heard──► UP
      ▲                                                      │                │
      └────────── lost, or SUSPECT for DEAD_SECONDS ─────────┴────────────────┘

Only UP is asked; anything else costs an asker nothing. A peer is silent when it lets one prompt
question time out, or answers no heartbeat. Whatever it says makes it UP again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TypeVar

from ... import wire
from ...errors import StoreError, StoreTimeout, StoreUnavailable
from ...keys import Namespace
from ...membership import StoreRecord
from ...opening import namespace_message
from .connection import LinkIdentity, PeerConnection
from .nearness import Nearness
from .pace import ChunkPace

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 2.0
HEARTBEAT_SECONDS = 0.5
SILENT_SECONDS = 1.5
DEAD_SECONDS = 5.0
GRACE_SECONDS = 0.5
"""Beyond what the peer itself waits, before a long question counts as unanswered."""

PROMPT_SECONDS = 0.05
"""A peer that said nothing for so long after a prompt question is not worth the next one."""

_Reply = TypeVar("_Reply", bound=wire.Reply)


class PeerLink:
    """Used on one loop. `run` keeps the connection; askers get StoreUnavailable meanwhile."""

    def __init__(self, record: StoreRecord, identity: LinkIdentity) -> None:
        self.record = record
        self.detail = "not connected yet"
        self.was_up = False
        self.pace = ChunkPace()
        self.nearness = Nearness()
        self._identity = identity
        self._rng = random.Random(record.instance)  # jitter only
        self._connection: PeerConnection | None = None
        self._is_suspect = False
        self._suspected_at = 0.0

    @property
    def is_up(self) -> bool:
        """Whether asking may be worth it now."""
        connection = self._connection
        if connection is not None and self._is_suspect:
            self._is_suspect = connection.heard_at < self._suspected_at
        return connection is not None and not self._is_suspect

    @property
    def version(self) -> int:
        """Of the wire, as agreed on; 0 while there is no connection."""
        return self._connection.version if self._connection is not None else 0

    async def run(self) -> None:
        """Runs until cancelled; never raises."""
        pause = FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    connection = await PeerConnection.open(self.record, self._identity)
                except (StoreError, OSError, EOFError, ValueError, OverflowError) as error:
                    self._tell_detail(str(error) or "no answer to the greeting")
                else:
                    pause = FIRST_PAUSE_SECONDS
                    await self._keep(connection)
                await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
                pause = min(2 * pause, LAST_PAUSE_SECONDS)
        except Exception:  # the task boundary
            logger.exception("peer_link_failed peer=%s", self.record.id)

    async def ask(self, message: wire.Request, kind: type[_Reply], *, timeout_s: float) -> _Reply:
        """The answer to a question that the peer can answer at once. Raises StoreUnavailable at
        once when the peer is not UP, StoreTimeout, which makes it SUSPECT, and what it refuses
        with. An asker who gives up sooner, but not at once, makes it SUSPECT too."""
        began = time.monotonic()
        reply = await self._ask(message, kind, timeout_s, min(timeout_s, PROMPT_SECONDS))
        self.nearness.took(time.monotonic() - began)
        return reply

    async def wait(self, message: wire.Request, kind: type[_Reply], *, wait_s: float) -> _Reply:
        """As `ask`, for a question that the peer may ponder for `wait_s`, as the message says."""
        timeout_s = wait_s + GRACE_SECONDS
        return await self._ask(message, kind, timeout_s, timeout_s)

    async def _ask(
        self, message: wire.Request, kind: type[_Reply], timeout_s: float, patience_s: float
    ) -> _Reply:
        connection, began = self._live(), time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.ask(message, kind)
        except TimeoutError as error:
            self._suspect()
            raise StoreTimeout(
                f"store {self.record.id} did not answer {type(message).__name__} within "
                f"{timeout_s:g} s"
            ) from error
        except asyncio.CancelledError:
            if time.monotonic() - began >= patience_s and connection.heard_at < began:
                self._suspect()
            raise

    def tell(self, message: wire.Request) -> None:
        """Without an answer, if there is a connection."""
        if self._connection is not None:
            self._connection.tell(message)

    async def namespace(self, namespace: Namespace, *, timeout_s: float) -> int:
        """The peer's number for it. Raises like `ask`."""
        connection = self._live()
        number = connection.namespaces.get(namespace.digest)
        if number is None:
            message = namespace_message(namespace)
            reply = await self.ask(message, wire.NamespaceReply, timeout_s=timeout_s)
            number = connection.namespaces[namespace.digest] = reply.namespace
        return number

    def _live(self) -> PeerConnection:
        if self._connection is None or not self.is_up:
            raise StoreUnavailable(f"store {self.record.id} is away: {self.detail}")
        return self._connection

    async def _keep(self, connection: PeerConnection) -> None:
        """Until the connection is lost, or the peer silent for too long."""
        self._connection, self._is_suspect, self.was_up = connection, False, True
        self.nearness.shares_boot = connection.shares_boot
        self._tell_detail("up")
        reading = asyncio.create_task(connection.run(), name=f"peer-{self.record.id}")
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=HEARTBEAT_SECONDS)
                silent = time.monotonic() - connection.heard_at
                if silent > DEAD_SECONDS:
                    self._tell_detail(f"silent for {DEAD_SECONDS:g} s")
                    return
                if silent > SILENT_SECONDS:
                    self._suspect()
                if silent > HEARTBEAT_SECONDS or self._is_suspect:
                    await self._beat(connection)
            self._tell_detail(f"lost: {reading.exception()}")
        finally:
            self._connection = None
            connection.close()
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled():
                reading.exception()  # looked at, or asyncio reports it as forgotten

    async def _beat(self, connection: PeerConnection) -> None:
        """A question whose answer, however late, says that the peer lives."""
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await connection.ask(wire.Exists([]), wire.ExistsReply)
        except (StoreError, TimeoutError):
            pass

    def _suspect(self) -> None:
        if not self._is_suspect:
            self._is_suspect, self._suspected_at = True, time.monotonic()
            logger.warning("peer_silent peer=%s", self.record.id)

    def _tell_detail(self, detail: str) -> None:
        if detail != self.detail:
            self.detail = detail
            logger.info("peer_link peer=%s detail=%s", self.record.id, detail)
