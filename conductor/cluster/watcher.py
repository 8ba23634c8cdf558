"""Keeps the view true: reads the membership, checks every worker, follows every store's events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Self

from moontide.kvstore.errors import StoreError
from moontide.kvstore.following import EventFollower
from moontide.kvstore.membership import Membership

from ..errors import ConductorError
from ..tokenising import TokeniserPool
from ..upstream import CallFailed, Failure, WorkerCalls
from .models import MAX_TOKENIZER_BYTES, Model, ModelKey, ModelRefused, load_model
from .view import Changes, ClusterView
from .workers import Health, Worker

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.5
CHECK_SECONDS = 1.0
CHECK_TIMEOUT_SECONDS = 2.5
"""A stopped worker is known within 1 + 2 · 2.5 + 1 seconds."""
MODEL_TIMEOUT_SECONDS = 10.0
MAX_CHECK_BYTES = 64 << 10


class Watcher:
    """A context manager; its tasks end with it. A membership that cannot be read leaves the last
    picture standing."""

    def __init__(
        self,
        view: ClusterView,
        membership: Membership,
        calls: WorkerCalls,
        pool: TokeniserPool,
    ) -> None:
        self._view = view
        self._membership = membership
        self._calls = calls
        self._pool = pool
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loading = asyncio.Lock()

    async def __aenter__(self) -> Self:
        self._start("membership", self._poll())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- membership -------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            try:
                self._follow(self._view.update(await asyncio.to_thread(self._membership.members)))
            except (StoreError, OSError) as error:
                logger.warning("membership_unreadable error=%s", error)
            except Exception:  # the task boundary
                logger.exception("membership_poll_failed")
            await asyncio.sleep(POLL_SECONDS)

    def _follow(self, changes: Changes) -> None:
        """One task a live member."""
        for worker in changes.ended_workers:  # watched until its last request has ended
            logger.info("worker_left id=%s", worker.record.id)
        for store in changes.ended_stores:
            self._stop(store.record.instance)
            logger.info("store_left id=%s", store.record.id)
        for worker in changes.started_workers:
            self._start(worker.record.instance, self._watch(worker))
            logger.info("worker_joined id=%s url=%s", worker.record.id, worker.record.url)
        for store in changes.started_stores:
            follower = EventFollower(store, self._view.index, self._calls.event_session)
            self._start(store.record.instance, follower.run())
            logger.info("store_joined id=%s admin=%s", store.record.id, store.record.admin_url)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._stop(name)
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda ended: self._forget(name, ended))

    def _forget(self, name: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is ended:
            del self._tasks[name]

    def _stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    # -- one worker -------------------------------------------------------------------

    async def _watch(self, worker: Worker) -> None:
        while worker.open_requests or not worker.is_gone:
            before = worker.health
            try:
                await self._check(worker)
                if worker.health is Health.READY:
                    await self._load_model(worker)
            except Exception:  # the task boundary
                logger.exception("worker_check_failed id=%s", worker.record.id)
            if worker.health is not before:
                logger.info(
                    "worker_health id=%s health=%s detail=%s",
                    worker.record.id,
                    worker.health,
                    worker.detail,
                )
            await asyncio.sleep(CHECK_SECONDS)

    async def _check(self, worker: Worker) -> None:
        try:
            status, _ = await self._calls.get(
                f"{worker.record.url}/readyz",
                timeout_s=CHECK_TIMEOUT_SECONDS,
                max_bytes=MAX_CHECK_BYTES,
            )
        except CallFailed as failed:
            if failed.failure is Failure.UNREACHABLE:
                worker.refused(str(failed))
            else:
                worker.failed(str(failed))
            return
        worker.answered(status == 200, f"/readyz answers {status}", time.monotonic())

    async def _load_model(self, worker: Worker) -> None:
        """Once for all workers that agree. One that contradicts itself is left out for good."""
        if worker.is_refused or ModelKey.of(worker.record) in self._view.models:
            return
        async with self._loading:
            key = ModelKey.of(worker.record)
            if key in self._view.models or worker.is_gone:
                return
            problem = ""
            try:
                self._view.add_model(key, await self._fetch_model(worker))
                logger.info("model_loaded model=%s worker=%s", key.name, worker.record.id)
            except ModelRefused as error:
                worker.is_refused = True
                problem = str(error)
            except (CallFailed, ConductorError) as error:  # the next check tries again
                problem = f"its model is not known: {error}"
            if problem and problem != worker.model_problem:
                logger.error("model_not_loaded worker=%s error=%s", worker.record.id, problem)
            worker.model_problem = problem

    async def _fetch_model(self, worker: Worker) -> Model:
        status, body = await self._calls.get(
            f"{worker.record.url}/v1/tokenizer",
            timeout_s=MODEL_TIMEOUT_SECONDS,
            max_bytes=MAX_TOKENIZER_BYTES,
        )
        if status != 200:
            raise CallFailed(Failure.BROKEN, f"/v1/tokenizer answers {status}")
        return await self._pool.run(lambda: load_model(body, worker.record))
