"""One store daemon from start to end: what it takes, in which order, and how it gives it back."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import socket
import time
from collections.abc import Callable
from functools import partial

import msgspec

from moontide.transfer.types import Instance

from ..errors import StoreError
from ..membership import Keeper, StoreRecord, open_membership
from ..service import (
    HostPort,
    HttpServer,
    Limits,
    Process,
    bind_listener,
    bound_address,
    build_app,
    wait_for_stop,
)
from ..slots import BEAT_SECONDS
from ..store import Store
from ..tls import open_tls
from ..types import Tier
from .absences import Absences
from .admin import AdminApi, Operated, StoreReport
from .admin.report import make_report
from .clearing import clear_everywhere
from .counters import Counters, TransportCounters
from .data_dir import DataDir, StoreState
from .drain import Drain
from .floors import FloorKeeper
from .gate import Gate
from .listeners import UnixListener
from .live_settings import LiveSettings
from .needs import check_needs
from .peers import Peers
from .removals import BlockRemovals
from .server import DataServer
from .settings import StoreSettings
from .sources import Sources
from .tiers import Tiering

logger = logging.getLogger(__name__)

STOP_SECONDS = 8.0
"""From the signal to the last write of what is not on disk yet; the rest of the way out takes less
than 2."""
LEAVE_SECONDS = 3.0
FORGET_SECONDS = 2.0
"""For the disk to forget string entries; a lease of ours is not renewed meanwhile."""
ADMIN_SHUTDOWN_SECONDS = 2.0
ADMIN_IN_FLIGHT = 256
"""Requests of the admin REST at once, event streams among them: at most 256 MiB of bodies."""


class StoreDaemon:
    """Takes everything at construction, so that a start that cannot work fails before anything is
    served: the data directory first, then addresses, then memory. `close` gives it back."""

    def __init__(self, settings: StoreSettings, process: Process) -> None:
        self._settings = settings
        self._process = process
        self._token = process.token()
        self._tls = open_tls(settings.tls_files)
        self._membership = open_membership(settings.cluster)
        self._ready = False
        self._counters = Counters()
        self._sources = Sources()
        self._tiering: Tiering | None = None
        self._keeper: Keeper | None = None
        self._stop_by = 0.0  # monotonic
        self._transfer = ""  # HOST:PORT where peers read the pool
        with contextlib.ExitStack() as stack:
            self._data_dir = stack.enter_context(contextlib.closing(DataDir(settings.data_dir)))
            self._unix = stack.enter_context(contextlib.closing(UnixListener(settings.socket_path)))
            self._tcp = (
                stack.enter_context(bind_listener(settings.listen))
                if "tcp" in settings.transports
                else None
            )
            self._admin = stack.enter_context(bind_listener(settings.admin))
            check_needs(settings)
            node = settings.node_id or socket.gethostname()
            self._store = Store(settings.pool_settings(), Instance.new(node), now=time.monotonic())
            stack.callback(self._store.close)
            self._peers = self._make_peers(stack)
            self._held = stack.pop_all()

    def close(self) -> None:
        self._held.close()

    async def serve(self) -> None:
        """Serves until SIGTERM or SIGINT. Raises Conflict when the node's name is taken."""
        async with contextlib.AsyncExitStack() as stack:
            self._tiering = self._open_tiering()
            self._set_admission(self._settings)
            self._limit_tenants(self._settings)
            if self._tiering is not None:
                stack.push_async_callback(self._end_tiering, self._tiering)
            self._drain = Drain(self._tiering)
            self._floors = FloorKeeper(
                self._store, self._membership, self._data_dir.path, self._tiering
            )
            stack.push_async_callback(self._floors.close)
            await self._floors.start()
            self._absences = Absences(
                self._membership, self._data_dir.path, self._store.instance.node
            )
            self._removals = BlockRemovals(
                self._store, self._tiering, self._membership, self._data_dir.path
            )
            stack.push_async_callback(self._removals.close)
            if self._peers is not None:
                self._start_peers(self._peers)
                stack.push_async_callback(self._peers.close)
            server = self._make_data_server()
            stack.callback(server.close)
            admin = await self._start_admin()
            stack.push_async_callback(admin.close)
            self._keeper = keeper = Keeper(
                self._membership,
                self._record(admin),
                on_lapse=self._lapsed,
                on_return=self._catch_up,
            )
            await keeper.start()
            stack.push_async_callback(_leave, keeper)
            await self._catch_up()
            self._listen()
            self._announce()
            gc.collect()
            gc.freeze()  # what is here now stays: the collector need not walk it again
            signal = await wait_for_stop()
            self._ready = False
            self._stop_by = time.monotonic() + STOP_SECONDS
            logger.info("stopping signal=%s", signal.name)

    def _is_member(self) -> bool:
        """For as long as clients believe a heartbeat: they read without asking."""
        return self._keeper is not None and self._keeper.is_held_for(BEAT_SECONDS)

    def _lapsed(self) -> None:
        """Our lease may have ended: others change string entries and remove blocks without us."""
        self._removals.unsettle()
        if self._peers is not None:
            self._peers.left()
            self._forget_strings(_ignore)

    async def _catch_up(self) -> None:
        """Our record lies in the membership, since just now: what was changed before that without
        us is forgotten, as is what we cannot know of."""
        if self._peers is None:
            return
        self._peers.joined()
        try:
            if await asyncio.to_thread(self._absences.has_missed):
                forgotten = asyncio.Event()
                self._forget_strings(lambda durable: forgotten.set() if durable else None)
                async with asyncio.timeout(FORGET_SECONDS):
                    await forgotten.wait()
            await asyncio.to_thread(self._absences.enrol)
        except (StoreError, OSError) as error:  # a TimeoutError, too: of the disk, or a file server
            logger.warning("strings_unproven next_start=forgets-them error=%r", error)
            self._forget_strings(_ignore)
        await self._removals.settle(FORGET_SECONDS)

    def _forget_strings(self, then: Callable[[bool], None]) -> None:
        """Ours may be older than what others have. KV blocks are what their keys say, whoever else
        has them. `then` once the disk has none either."""
        removed = self._store.clear(None, strings_only=True)
        if self._tiering is not None:
            self._tiering.clear("", then)
        else:
            then(True)
        logger.info("strings_dropped count=%d reason=peers-may-have-changed-them", removed)

    def _start_peers(self, peers: Peers) -> None:
        """What they have counts among the sources from now on."""
        peers.start(
            self._floors.of,
            self._absences.bar,
            self._removals,
            locate=self._tiering.locate_key if self._tiering is not None else None,
        )
        self._sources = dataclasses.replace(
            self._sources,
            peer_blocks=peers.blocks,
            peer_entries=peers.entries,
            hand_offs=peers.hand_offs,
            changes=peers.changes,
            clear=partial(clear_everywhere, self._floors, peers),
            is_member=self._is_member,
        )

    def _open_tiering(self) -> Tiering | None:
        """Recovers what an earlier process left on disk. Blocks: nothing is served yet."""
        if not self._settings.nvme:
            return None
        tiering = Tiering(
            self._store,
            self._settings.nvme_settings(),
            loop=asyncio.get_running_loop(),
            counters=self._counters.disk,
        )
        self._sources = dataclasses.replace(
            self._sources, disk_blocks=tiering.source, disk_entries=tiering.source
        )
        return tiering

    async def _end_tiering(self, tiering: Tiering) -> None:
        """Nobody writes any more: what is not on disk goes there, as far as the time allows."""
        if not await tiering.flush(self._stop_by):
            logger.warning("stopping_unflushed")
        tiering.close()

    def _make_peers(self, stack: contextlib.ExitStack) -> Peers | None:
        """None, said once, when no other daemon can be found or reached."""
        settings = self._settings
        if not settings.has_peers:
            logger.info(
                "no_peers transports=%s cluster=%s", ",".join(settings.transports), settings.cluster
            )
            return None
        address = settings.transfer_listen or HostPort(settings.listen.host, 0)
        listener = stack.enter_context(bind_listener(address))
        self._transfer = str(bound_address(listener))
        return Peers(
            self._store,
            self._membership,
            token=self._token,
            listener=listener,
            copies=settings.remote_copies,
            rails=settings.rails,
            tls=self._tls,
        )

    def _make_data_server(self) -> DataServer:
        settings, loop = self._settings, asyncio.get_running_loop()
        self._gate = Gate(
            self._store,
            loop=loop,
            token=self._token,
            shared_memory="shm" in settings.transports,
            inline_bytes=int(settings.inline),
            max_clients=settings.max_clients,
            poll_seconds=settings.poll_seconds,
            stats=lambda: msgspec.json.encode(self._report()),
            sources=self._sources,
            tiering=self._tiering,
            floors=self._floors,
            drain=self._drain,
        )
        self._server = DataServer(
            self._store,
            loop=loop,
            gate=self._gate,
            counters=self._counters,
            max_clients=settings.max_clients,
            connection_bytes=int(settings.connection_memory),
            stall_seconds=settings.stall_seconds,
            poll_seconds=settings.poll_seconds,
            tiering=self._tiering,
            is_member=self._sources.is_member,
            tls=self._tls,
        )
        return self._server

    def _listen(self) -> None:
        """Once others can know of us: what they change they then change here too."""
        self._server.listen(self._unix.socket)
        if self._tcp is not None:
            self._server.listen(self._tcp)

    async def _start_admin(self) -> HttpServer:
        server = self._server
        settings = LiveSettings(
            self._settings,
            {
                "admission": self._set_admission,
                "nvme_tenant_cap": self._limit_tenants,
                "stall_seconds": lambda changed: server.set_stall_seconds(changed.stall_seconds),
                "tenant_cap": self._limit_tenants,
                "tenant_share": self._limit_tenants,
            },
        )
        operated = Operated(
            store=self._store,
            settings=settings,
            floors=self._floors,
            drain=self._drain,
            peers=self._peers,
            tiering=self._tiering,
        )
        self._api = AdminApi(operated, report=self._report, is_ready=lambda: self._ready)
        app = build_app(
            self._api.routes(),
            title="Moontide store",
            token=self._token,
            hosts=self._process.allowed_hosts,
            limits=Limits(in_flight=ADMIN_IN_FLIGHT, shutdown_seconds=ADMIN_SHUTDOWN_SECONDS),
        )
        return await HttpServer.start(app, self._admin)

    def _set_admission(self, settings: StoreSettings) -> None:
        self._store.set_admission(settings.admission.rules)

    def _limit_tenants(self, settings: StoreSettings) -> None:
        self._store.limit_tenants(settings.tenant_cap.sizes, settings.tenant_share.sizes)
        if self._tiering is not None:
            self._tiering.caps.set_caps(settings.nvme_tenant_cap.sizes)

    def _report(self) -> StoreReport:
        stats = self._store.stats(time.monotonic())
        if self._tiering is not None:
            stats.tiers[Tier.NVME.value] = self._tiering.stats()
        return make_report(
            stats,
            self._counters,
            connections=self._server.num_connections,
            connection_bytes=self._server.connection_bytes,
            client_processes=len(self._gate.clients),
            event_streams=self._api.num_event_streams,
            draining=self._drain.is_on,
            transfers=self._peers.transfers() if self._peers is not None else TransportCounters(),
            peers=self._peers.report() if self._peers is not None else None,
            nvme=self._tiering.disk_stats() if self._tiering is not None else None,
        )

    def _record(self, admin: HttpServer) -> StoreRecord:
        instance = self._store.instance
        return StoreRecord(
            id=instance.node,
            instance=str(instance),
            admin_url=admin.url,
            data_address=str(bound_address(self._tcp)) if self._tcp else "",
            transfer_address=self._transfer,
            socket=str(self._unix.path),
        )

    def _announce(self) -> None:
        state = StoreState(
            socket=str(self._unix.path),
            listen=str(bound_address(self._tcp)) if self._tcp else None,
            admin=str(bound_address(self._admin)),
            pid=self._store.instance.process,
            instance=str(self._store.instance),
            transfer=self._transfer or None,
        )
        self._ready = True
        self._data_dir.publish(state)
        self._process.report_ready(
            socket=state.socket,
            listen=state.listen,
            transfer=state.transfer,
            admin=state.admin,
            instance=state.instance,
        )


def _ignore(durable: bool) -> None:
    """What the disk did not take is dropped when this daemon starts again."""


async def _leave(keeper: Keeper) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            await keeper.close()
