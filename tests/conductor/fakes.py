"""A Conductor in this process, with fake workers and stores around it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, ParamSpec

import aiohttp
import msgspec
import uvloop
from aiohttp import web

from moontide.conductor.server import conductor
from moontide.conductor.settings import ConductorSettings
from moontide.kvstore.events import EventKind, KvEvent, SnapshotBegin
from moontide.kvstore.keys import BlockKey, kv_entry_id
from moontide.kvstore.membership import (
    Membership,
    MemoryMembership,
    Registration,
    StoreRecord,
)
from moontide.kvstore.service import HostPort

from ..waiting import until
from .fake_model import LAYOUT, MODEL, NAMESPACE, TOKEN
from .fake_worker import FakeWorker

P = ParamSpec("P")
TEST_SECONDS = 90.0


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs an async test in a loop of its own, with a deadline."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            async with asyncio.timeout(TEST_SECONDS):
                await test(*args, **kwargs)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the daemon has
            runner.run(body())

    return run


class FakeStore:
    """A store daemon as the Conductor meets it: `/v1/events`, fed by the test."""

    def __init__(self, name: str = "node-a") -> None:
        self.name = name
        self.instance = f"{name}/2/{'5a' * 16}"
        self.url = ""
        self.seq = 0
        self.subscriptions = 0
        self.held: list[KvEvent] = []  # what the next snapshot says
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._runner: web.AppRunner | None = None

    def record(self) -> StoreRecord:
        return StoreRecord(
            id=self.name,
            instance=self.instance,
            admin_url=self.url,
            data_address="127.0.0.1:1",
            socket="/nowhere",
        )

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/events", self._events)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def publish(
        self,
        keys: Sequence[BlockKey],
        *,
        kind: EventKind = "stored",
        instance: str | None = None,
        tier: str = "dram",
        skip: int = 0,
    ) -> None:
        """One live event; `skip` numbers are lost before it."""
        self.seq += 1
        event = self._kv(kind, keys, instance or self.instance, tier)
        self.held.append(event)
        if skip:
            self.seq += skip
            event = msgspec.structs.replace(event, seq=self.seq)
        for queue in self._queues:
            queue.put_nowait(_named("kv", event))

    def end_streams(self) -> None:
        for queue in self._queues:
            queue.put_nowait(None)

    def _kv(self, kind: EventKind, keys: Sequence[BlockKey], instance: str, tier: str) -> KvEvent:
        shard = LAYOUT.whole()[0]
        return KvEvent(
            seq=self.seq,
            kind=kind,
            instance=instance,
            tier=tier,
            namespace=NAMESPACE.digest.hex(),
            entries=tuple(kv_entry_id(key, shard).hex() for key in keys),
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        self.subscriptions += 1
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            await response.write(_named("snapshot", SnapshotBegin(self.instance, self.seq)))
            for event in self.held:
                await response.write(_named("kv", msgspec.structs.replace(event, seq=self.seq)))
            await response.write(f'event: live\ndata: {{"seq": {self.seq}}}\n\n'.encode())
            while (data := await queue.get()) is not None:
                await response.write(data)
        finally:
            self._queues.discard(queue)
        return response


def _named(name: str, value: msgspec.Struct) -> bytes:
    return f"event: {name}\ndata: {msgspec.json.encode(value).decode()}\n\n".encode()


class Cluster:
    """A Conductor in this process and its fakes; `http` speaks to the Conductor."""

    def __init__(self, url: str, http: aiohttp.ClientSession, membership: Membership) -> None:
        self.url = url
        self.http = http
        self.membership = membership
        self.registrations: dict[str, Registration] = {}

    def join(self, *members: FakeWorker | FakeStore) -> None:
        for member in members:
            registration = self.membership.register(member.record(), 300.0)
            self.registrations[member.name] = registration

    def leave(self, member: FakeWorker | FakeStore) -> None:
        self.membership.leave(self.registrations.pop(member.name))

    async def status(self) -> dict[str, Any]:
        async with self.http.get(f"{self.url}/v1/cluster") as response:
            assert response.status == 200
            found: dict[str, Any] = await response.json()
            return found

    async def worker(self, name: str) -> dict[str, Any]:
        status = await self.status()
        return next((worker for worker in status["workers"] if worker["id"] == name), {})

    async def wait_usable(self, *names: str) -> None:
        async def usable() -> bool:
            found = {w["id"] for w in (await self.status())["workers"] if w["usable"]}
            return set(names) <= found

        await until(usable, f"{names} usable")

    async def post(self, path: str, body: object) -> tuple[int, dict[str, Any], dict[str, str]]:
        async with self.http.post(f"{self.url}{path}", json=body) as response:
            return response.status, await response.json(), dict(response.headers)

    async def complete(self, prompt: object = "hi", **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": MODEL, "prompt": prompt, **fields}
        status, answer, _ = await self.post("/v1/completions", body)
        return status, answer

    async def stream(self, path: str, body: dict[str, Any]) -> list[str]:
        """The `data` of every event."""
        async with self.http.post(f"{self.url}{path}", json=body | {"stream": True}) as response:
            text = await response.text()
            assert response.status == 200, text
            assert response.content_type == "text/event-stream"
        events = [line for line in text.split("\n\n") if line and not line.startswith(":")]
        assert all(event.startswith("data: ") for event in events)
        return [event.removeprefix("data: ") for event in events]


@asynccontextmanager
async def leaving_client(
    cluster: Cluster, body: dict[str, Any]
) -> AsyncIterator[asyncio.Task[aiohttp.ClientResponse]]:
    """A completion that is asked for until the block ends; then its client goes away."""
    async with aiohttp.ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{cluster.url}/v1/completions", json=body))
        try:
            yield asking
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                (await asking).close()  # it had begun to be answered


@asynccontextmanager
async def running(
    *members: FakeWorker | FakeStore,
    api_keys: Sequence[str] = (),
    wait: bool = True,
    token: str = TOKEN,
    membership: Membership | None = None,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """The members, started and registered, and a Conductor that knows them."""
    chosen = ConductorSettings(
        cluster="file:/of-tests", listen=HostPort("127.0.0.1", 0), **settings
    )
    membership = membership or MemoryMembership(time.monotonic)
    async with AsyncExitStack() as stack:
        for member in members:
            await member.start()
            stack.push_async_callback(member.stop)
        server = await stack.enter_async_context(
            conductor(chosen, membership, token=token, api_keys=api_keys)
        )
        http = await stack.enter_async_context(aiohttp.ClientSession())
        cluster = Cluster(server.url, http, membership)
        cluster.join(*members)
        if wait:
            workers = [m.name for m in members if isinstance(m, FakeWorker) and m.ready]
            await cluster.wait_usable(*workers)
        yield cluster


def prefill_worker(name: str = "p", **fields: Any) -> FakeWorker:
    """On the first of two nodes."""
    return FakeWorker(name, role="prefill", store_instance=FakeStore("node-1").instance, **fields)


def decode_worker(name: str = "d", **fields: Any) -> FakeWorker:
    """On the second."""
    return FakeWorker(name, role="decode", store_instance=FakeStore("node-2").instance, **fields)


@asynccontextmanager
async def two_nodes(*workers: FakeWorker, **settings: Any) -> AsyncIterator[Cluster]:
    """A Conductor, two stores, and workers of every role on them."""
    async with running(FakeStore("node-1"), FakeStore("node-2"), *workers, **settings) as cluster:
        yield cluster


async def nothing_left(cluster: Cluster, *workers: FakeWorker) -> None:
    """Neither end does, counts or keeps anything for a request any more."""

    async def idle() -> bool:
        status = await cluster.status()
        return status["requests_in_flight"] == 0 and all(
            worker["open_requests"] == 0 for worker in status["workers"]
        )

    await until(idle, "the Conductor counts no open request")
    for worker in workers:
        await until(
            lambda w=worker: not (w.running or w.queued or w.reserved or w.handoffs),
            f"worker {worker.name} is idle",
        )


async def metric(cluster: Cluster, line: str) -> float:
    """The value of one line of /metrics; 0 where it is not there."""
    async with cluster.http.get(f"{cluster.url}/metrics") as response:
        text = await response.text()
    found = [row for row in text.splitlines() if row.startswith(f"moontide_conductor_{line} ")]
    return float(found[0].split()[-1]) if found else 0.0
