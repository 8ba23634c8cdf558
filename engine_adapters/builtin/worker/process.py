"""The worker process: start, serve, stop within ten seconds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from functools import partial
from typing import Any

import torch
import uvloop

from moontide.kvstore import block_keys
from moontide.kvstore.membership import Keeper, Membership, WorkerRecord
from moontide.kvstore.service import (
    CommandFailed,
    HttpServer,
    Process,
    build_app,
    wait_for_stop,
)
from moontide.transfer.types import Instance

from ..engine.engine import Engine
from ..engine.load_advisor import LoadAdvisor
from ..engine.store_connector import StoreConnector, StoreSettings
from ..engine.store_link import DaemonLink, NoStore, StoreLink
from ..errors import EngineError
from ..model import LoadedModel, load_model
from .build import choose_device, limits_of, make_pool, namespace_of
from .service import WorkerService
from .settings import NO_STORE, WorkerSettings

_STORE_SECONDS = 2.0
_DRAIN_SECONDS = 4.0
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_ENGINE_STOP_SECONDS = 3.0


def run_worker(
    settings: WorkerSettings, process: Process, membership: Membership, listener: socket.socket
) -> int:
    """Serves on `listener` until told to stop. Raises what `daemon_command` turns into one line."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = choose_device(settings.device)
    try:
        worker = _Worker(settings, process, load_model(settings.model, device), device)
    except EngineError as error:
        raise CommandFailed(str(error)) from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(worker.serve(membership, listener))
    return 0


class _Worker:
    """Everything of one worker, wired together. `serve` once."""

    def __init__(
        self,
        settings: WorkerSettings,
        process: Process,
        model: LoadedModel,
        device: torch.device,
    ) -> None:
        self._settings = settings
        self._process = process
        self._model = model
        self._instance = Instance.new(settings.node_id or socket.gethostname())
        self._namespace = namespace_of(
            model, kv_dtype=settings.kv_dtype, block_tokens=settings.block_tokens
        )
        self._tensors = make_pool(model.config, settings, device)
        self._limits = limits_of(settings, model.config)

    async def serve(self, membership: Membership, listener: socket.socket) -> None:
        """Until SIGTERM or SIGINT. Raises CommandFailed when the engine ends by itself, or what
        start-up raises."""
        link = self._open_link()
        failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        engine = self._make_engine(link, failure)
        service = WorkerService(engine, self._model, self._namespace, self._settings.role)
        app = build_app(
            service.routes(),
            title="Moontide worker",
            token=self._process.token(),
            hosts=self._process.allowed_hosts,
        )
        await asyncio.to_thread(link.wait, _STORE_SECONDS)  # a cold start is stored too
        engine.start()
        server = await HttpServer.start(app, listener)
        keeper = Keeper(membership, self._record(server.url, link))
        telling = asyncio.create_task(self._tell_daemon(keeper, server.url, link))
        stop = asyncio.create_task(wait_for_stop())
        try:
            await keeper.start()
            service.accepting = True
            self._process.report_ready(url=server.url, model=self._model.name)
            ends: set[asyncio.Future[Any]] = {stop, failure}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            service.accepting = False
            telling.cancel()
            await keeper.close()
            await _drain(engine)
        finally:
            stop.cancel()
            telling.cancel()
            await keeper.close()
            await server.close()
            await asyncio.to_thread(engine.close, _ENGINE_STOP_SECONDS)
            await asyncio.to_thread(link.close)
        if failure.done():
            raise CommandFailed(f"the engine failed: {failure.result()}; see the log")

    def _open_link(self) -> StoreLink:
        if self._settings.store == NO_STORE:
            return NoStore()
        return DaemonLink(
            self._settings.store,
            self._namespace,
            self._instance,
            replicas=self._settings.kv_replicas,
        )

    def _make_engine(self, link: StoreLink, failure: asyncio.Future[str]) -> Engine:
        loop = asyncio.get_running_loop()

        def died(error: BaseException) -> None:
            text = f"{type(error).__name__}: {error}"
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                loop.call_soon_threadsafe(failure.set_result, text)

        connector = StoreConnector(
            link,
            self._tensors,
            StoreSettings(
                lookup_timeout_s=self._settings.lookup_seconds,
                load=self._settings.load,
                load_timeout_s=self._settings.load_seconds,
                handoff_timeout_s=self._settings.handoff_seconds,
                staging_bytes=self._settings.staging,
                max_background_loads=self._settings.max_running,
            ),
            LoadAdvisor(self._tensors, self._model.config),
        )
        return Engine(
            self._model,
            self._tensors,
            connector,
            self._limits,
            partial(block_keys, self._namespace),
            on_death=died,
        )

    async def _tell_daemon(self, keeper: Keeper, url: str, link: StoreLink) -> None:
        """Keeps the record's store instance true while daemons come and go."""
        told = link.daemon()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if link.daemon() != told:
                told = link.daemon()
                keeper.update(self._record(url, link))

    def _record(self, url: str, link: StoreLink) -> WorkerRecord:
        daemon = link.daemon()
        node = self._settings.node_id or (Instance.parse(daemon).node if daemon else "")
        return WorkerRecord(
            id=self._settings.id,
            instance=str(self._instance),
            url=url,
            role=self._settings.role,
            model=self._model.name,
            node=node or socket.gethostname(),
            store_instance=daemon,
            namespace=self._namespace.digest.hex(),
            block_tokens=self._settings.block_tokens,
            tokenizer_digest=self._model.tokenizer_digest,
            context_tokens=self._limits.room_tokens(self._tensors.num_pages),
            max_running=self._settings.max_running,
        )


async def _drain(engine: Engine) -> None:
    """Lets running requests end, for a while."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while engine.is_alive and engine.num_live and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
