"""Workers and stores as the Conductor meets them, without an engine: each speaks the real HTTP
contract and does what a test tells it."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec

import aiohttp
import msgspec
import uvloop
from aiohttp import web
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from moontide.conductor.server import conductor
from moontide.conductor.settings import ConductorSettings
from moontide.kvstore.events import EventKind, KvEvent, SnapshotBegin
from moontide.kvstore.keys import BlockKey, Namespace, block_keys, kv_entry_id
from moontide.kvstore.layout import Group, KVLayout
from moontide.kvstore.membership import (
    Membership,
    MemoryMembership,
    Registration,
    StoreRecord,
    WorkerRecord,
)
from moontide.kvstore.service import HostPort

TOKEN = "cluster-token-for-tests"
MODEL = "tiny"
CONTEXT_TOKENS = 512
BLOCK_TOKENS = 16
LAYOUT = KVLayout((Group("full", 2, 1, 8, "float32"),))
NAMESPACE = Namespace(
    weights_id="w1", layout=LAYOUT, tokenizer_digest="t1", block_tokens=BLOCK_TOKENS
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
P = ParamSpec("P")
TEST_SECONDS = 40.0


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


async def until(condition: Callable[[], Any], what: str, seconds: float = 15.0) -> None:
    """Polls, so that no test depends on how long something takes."""
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)


@functools.cache
def tokenizer() -> Tokenizer:
    """One token a byte, and the two special tokens of the template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    return made


def keys_of(token_ids: Sequence[int]) -> list[BlockKey]:
    return block_keys(NAMESPACE, token_ids)


@dataclass
class FakeWorker:
    """Answers every request with `words`, one token each. `fail` is what it does instead."""

    name: str = "w0"
    words: list[str] = field(default_factory=lambda: ["Hel", "lo", "!"])
    cached_tokens: int = 0
    template: str | None = TEMPLATE
    model: str = MODEL
    context_tokens: int = CONTEXT_TOKENS
    told_context_tokens: int | None = None
    max_running: int = 8
    store_instance: str = ""
    role: str = "both"
    ready: bool = True
    fail: Callable[[FakeWorker, web.Request], Awaitable[web.StreamResponse]] | None = None
    fail_after: int | None = None  # words, then the connection breaks
    error_after: int | None = None  # words, then an error event
    hold_after: int | None = None  # words, then nothing until `released`

    def __post_init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.request_ids: list[str] = []
        self.checks = 0
        self.running = 0
        self.aborted = 0
        self.released = asyncio.Event()
        self.instance = f"node-a/1/{self.name.encode().hex():0>32}"
        self.url = ""
        self._runner: web.AppRunner | None = None

    def record(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.name,
            instance=self.instance,
            url=self.url,
            role=self.role,  # type: ignore[arg-type] # tests give wrong ones too
            model=self.model,
            node="node-a",
            store_instance=self.store_instance,
            namespace=NAMESPACE.digest.hex(),
            block_tokens=BLOCK_TOKENS,
            tokenizer_digest="t1",
            context_tokens=self.context_tokens,
            max_running=self.max_running,
        )

    async def start(self, port: int = 0, keepalive_s: float = 75.0) -> None:
        app = web.Application(client_max_size=32 << 20)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/v1/tokenizer", self._tokenizer)
        app.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, keepalive_timeout=keepalive_s, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        host, bound = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{bound}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _readyz(self, request: web.Request) -> web.Response:
        self.checks += 1
        return web.Response(status=200 if self.ready else 503)

    async def _tokenizer(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        groups = [
            {name: getattr(group, name) for name in group.__dataclass_fields__}
            for group in LAYOUT.groups
        ]
        return web.json_response(
            {
                "model": self.model,
                "tokenizer": tokenizer().to_str(),
                "chat_template": self.template,
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "digest": "t1",
                "context_tokens": self.told_context_tokens or self.context_tokens,
                "block_tokens": BLOCK_TOKENS,
                "namespace": NAMESPACE.digest.hex(),
                "namespace_fields": {
                    "weights_id": "w1",
                    "tokenizer_digest": "t1",
                    "block_tokens": BLOCK_TOKENS,
                    "rope_scaling": "",
                    "adapter_digest": "",
                    "salt": "",
                },
                "layout": groups,
            }
        )

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        body = await request.json()
        self.requests.append(body)
        self.request_ids.append(request.headers["X-Request-Id"])
        self.running += 1
        try:
            if self.fail is not None:
                return await self.fail(self, request)
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = self.words[: body["max_tokens"]]
        for number, word in enumerate(words):
            if number == self.hold_after:
                await self.released.wait()
            if number == self.error_after:
                await response.write(b'data: {"error": {"message": "the engine failed"}}\n\n')
                return response
            if number == self.fail_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            last = number == len(words) - 1
            reason = ("stop" if len(words) == len(self.words) else "length") if last else None
            choice = {"index": 0, "text": word, "token_ids": [number], "finish_reason": reason}
            await response.write(_event({"choices": [choice]}))
        prompt_tokens = len(body["prompt"])
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(words),
            "total_tokens": prompt_tokens + len(words),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        evidence = {"cached_by_tier": {"hbm": 0, "dram": self.cached_tokens}}
        await response.write(_event({"choices": [], "usage": usage, "moontide": evidence}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(value: dict[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps({"id": "x", "object": "text_completion", **value}).encode() + b"\n\n"
    )


class FakeStore:
    """A store daemon's `/v1/events`, fed by the test."""

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
