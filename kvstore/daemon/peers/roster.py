"""The other daemons of the cluster, as the membership names them now.

For each: a link to its data port, its events in the index, a route to its pool. An instance that
left or was replaced is dropped with all three before its successor is taken in, so nothing that was
known of the one is ever asked of the other. One whose record is gone while it still answers has not
left: the membership was wiped, or it is about to go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from moontide.transfer.engine import TransferEngine
from moontide.transfer.errors import TransferError

from ...errors import StoreError
from ...following import EventFollower, FollowedStore
from ...index import PrefixIndex
from ...membership import Member, Membership, StoreRecord
from .connection import LinkIdentity
from .link import PeerLink

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One other daemon, in one life of it."""

    record: StoreRecord
    link: PeerLink
    followed: FollowedStore
    tasks: tuple[asyncio.Task[None], ...]
    engine: TransferEngine

    @property
    def is_readable(self) -> bool:
        """Whether reading its pool may be worth asking for now: it answers, and so does the way
        its bytes take."""
        return self.link.is_up and self.engine.is_reachable(self.record.instance)

    @property
    def detail(self) -> str:
        """What is known of the way to it."""
        if self.link.is_up and not self.is_readable:
            return "it answers, but reading its pool failed lately"
        return self.link.detail


class Roster:
    """Lives in one loop. A membership that cannot be read leaves the last picture standing."""

    def __init__(
        self,
        membership: Membership,
        identity: LinkIdentity,
        *,
        node: str,
        index: PrefixIndex,
        engine: TransferEngine,
        session: aiohttp.ClientSession,
    ) -> None:
        self._membership = membership
        self._identity = identity
        self._node = node
        self._index = index
        self._engine = engine
        self._session = session
        self._neighbours: dict[str, Neighbour] = {}  # by node id
        self._looking = asyncio.Lock()
        self._unusable: set[str] = set()  # instances whose records lead nowhere, told once
        self._poll: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._poll = asyncio.create_task(self._watch(), name="peers-watch")

    async def close(self) -> None:
        tasks = [self._poll] if self._poll is not None else []
        for neighbour in list(self._neighbours.values()):
            tasks += neighbour.tasks
            self._drop(neighbour)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def neighbours(self) -> list[Neighbour]:
        return list(self._neighbours.values())

    def find(self, instance: str) -> Neighbour | None:
        for neighbour in self._neighbours.values():
            if neighbour.record.instance == instance:
                return neighbour
        return None

    async def look(self) -> None:
        """Reads the membership: whoever was registered before is a neighbour afterwards. Raises
        StoreError and OSError, with the last picture standing."""
        async with self._looking:
            self._take(await asyncio.to_thread(self._membership.members))

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except (StoreError, OSError) as error:
                logger.warning("membership_unreadable error=%s", error)
            except Exception:  # the task boundary
                logger.exception("peers_watch_failed")
            await asyncio.sleep(POLL_SECONDS)

    def _take(self, members: Sequence[Member]) -> None:
        records = {
            member.record.id: member.record
            for member in members
            if isinstance(member.record, StoreRecord) and member.record.id != self._node
        }
        for neighbour in list(self._neighbours.values()):
            record = records.get(neighbour.record.id)
            if record != neighbour.record and (record is not None or not neighbour.link.is_up):
                self._drop(neighbour)
        self._unusable &= {record.instance for record in records.values()}
        for record in records.values():
            if record.id not in self._neighbours and record.instance not in self._unusable:
                self._try_to_add(record)

    def _try_to_add(self, record: StoreRecord) -> None:
        """One record that leads nowhere must not keep out the others."""
        try:
            self._add(record)
        except (ValueError, TransferError) as error:
            self._unusable.add(record.instance)
            logger.warning("peer_unusable peer=%s error=%s", record.id, error)

    def _add(self, record: StoreRecord) -> None:
        link, followed = PeerLink(record, self._identity), FollowedStore(record)
        follower = EventFollower(followed, self._index, self._session)
        work = [(f"peer-events-{record.id}", follower.run())]
        if record.data_address and record.transfer_address:
            host, _, port = record.transfer_address.rpartition(":")
            self._engine.add_route(record.instance, host.strip("[]"), int(port))
            work.append((f"peer-link-{record.id}", link.run()))
        else:
            link.detail = "it has no data port: it runs without tcp in --transports"
        tasks = tuple(asyncio.create_task(run, name=name) for name, run in work)
        self._neighbours[record.id] = Neighbour(record, link, followed, tasks, self._engine)
        logger.info("peer_joined peer=%s instance=%s", record.id, record.instance)

    def _drop(self, neighbour: Neighbour) -> None:
        record = neighbour.record
        for task in neighbour.tasks:
            task.cancel()
        del self._neighbours[record.id]
        self._index.drop_stream(record.id)
        self._engine.drop_route(record.instance)
        logger.info("peer_left peer=%s instance=%s", record.id, record.instance)
