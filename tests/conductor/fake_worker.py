"""A worker as the Conductor meets it, without an engine: it speaks the real HTTP contract, hand-off
included, and does what a test tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from moontide.kvstore.membership import WorkerRecord

from .fake_model import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    LAYOUT,
    MODEL,
    NAMESPACE,
    TEMPLATE,
    TOKEN,
    tokenizer,
)


@dataclass(eq=False)
class FakeWorker:
    """Answers every request with `words`, one token each, whose id is its number; as either side
    of a hand-off where it is asked to be. `fail` is what it does instead."""

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
    dies_when: str | None = None  # queued, reserved or told: of its decode side
    holds_when_queued: bool = False  # its decode side, until `admitted`
    window: int = 1000  # decode sides that are reserved at once; others queue
    max_queued: int = 1000  # beyond these: 503
    lost_answers: int = 0  # first tokens taken whose answer gets lost
    reserves: bool = True  # else its decode side answers alone
    node: str = "node-a"

    def __post_init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.request_ids: list[str] = []
        self.checks = 0
        self.running = 0
        self.aborted = 0
        self.told: list[int] = []  # first tokens
        self.queued = self.reserved = 0
        self.released = asyncio.Event()
        self.admitted = asyncio.Event()
        self.answers_checks = asyncio.Event()
        self.answers_checks.set()
        self.handoffs: dict[str, asyncio.Future[int]] = {}
        self._window = asyncio.Semaphore(self.window)
        self.instance = f"{self.node}/1/{self.name.encode().hex():0>32}"
        self.url = ""
        self._runner: web.AppRunner | None = None

    def record(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.name,
            instance=self.instance,
            url=self.url,
            role=self.role,  # type: ignore[arg-type] # tests give wrong ones too
            model=self.model,
            node=self.node,
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
        app.router.add_post("/v1/handoffs/{id}/first_token", self._first_token)
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
        await self.answers_checks.wait()
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
        assert body["return_token_ids"]
        assert isinstance(body["seed"], int)
        self.requests.append(body)
        self.request_ids.append(request.headers["X-Request-Id"])
        self.running += 1
        try:
            if self.fail is not None:
                return await self.fail(self, request)
            if self.reserves and body.get("kv_transfer_params", {}).get("do_remote_prefill"):
                return await self._decode(request, body)
            return await self.answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise
        finally:
            self.running -= 1

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Alone, or as the prefill side."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        resumed = body.get("resume_tokens", 0)
        assert body["prompt"][len(body["prompt"]) - resumed :] == list(range(resumed))
        if await self._words(request, response, body, resumed):
            await self._end(response, body, resumed, self.cached_tokens)
        return response

    async def _decode(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """As the decode side: queue, reserve, wait for token 1, go on with token 2."""
        handoff_id = body["kv_transfer_params"]["handoff_id"]
        assert len(bytes.fromhex(handoff_id)) == 16
        if self.queued >= self.max_queued:
            return web.json_response({"error": {"message": "queue full"}}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._queue(request, response)
        future = self.handoffs[handoff_id] = asyncio.get_running_loop().create_future()
        self.reserved += 1
        try:
            await response.write(
                _event({"choices": [], "kv_transfer_params": {"state": "reserved"}})
            )
            if self.dies_when == "reserved":
                return await _die(request, response)
            assert await future == 0
            if self.dies_when == "told":
                return await _die(request, response)
            if await self._words(request, response, body, 1):
                await self._end(response, body, 0, len(body["prompt"]))
        finally:
            self.reserved -= 1
            self.handoffs.pop(handoff_id, None)
            self._window.release()
        return response

    async def _queue(self, request: web.Request, response: web.StreamResponse) -> None:
        """Waits for room, with signs of life. The window is this request's afterwards."""
        self.queued += 1
        try:
            if self.dies_when == "queued":
                await _die(request, response)
            entering = asyncio.ensure_future(self._enter())
            try:
                while not (await asyncio.wait({entering}, timeout=0.1))[0]:
                    await response.write(b": keep-alive\n\n")
            finally:
                entering.cancel()
        finally:
            self.queued -= 1

    async def _enter(self) -> None:
        if self.holds_when_queued:
            await self.admitted.wait()
        await self._window.acquire()

    async def _first_token(self, request: web.Request) -> web.Response:
        token_id = (await request.json())["token_id"]
        self.told.append(token_id)
        future = self.handoffs.get(request.match_info["id"])
        if future is None:
            return web.json_response({"error": {"message": "no such hand-off"}}, status=404)
        if not future.done():
            future.set_result(token_id)
        if self.lost_answers:
            self.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        if future.result() != token_id:
            return web.json_response({"error": {"message": "another token"}}, status=409)
        return web.json_response({})

    async def _words(
        self, request: web.Request, response: web.StreamResponse, body: dict[str, Any], first: int
    ) -> bool:
        """Sends them from number `first` on; False where it fails instead."""
        words = self.words[: body["max_tokens"]]
        for number in range(first, len(words) + 1):
            if number == self.hold_after:
                await self.released.wait()
            if number == self.error_after:
                await response.write(b'data: {"error": {"message": "the engine failed"}}\n\n')
                return False
            if number == self.fail_after:
                await _die(request, response)
                return False
            if number == len(words):
                return True
            last = number == len(words) - 1
            reason = ("stop" if len(words) == len(self.words) else "length") if last else None
            choice = {
                "index": 0,
                "text": words[number],
                "token_ids": [number],
                "finish_reason": reason,
            }
            await response.write(_event({"choices": [choice]}))
        return True

    async def _end(
        self, response: web.StreamResponse, body: dict[str, Any], resumed: int, cached_tokens: int
    ) -> None:
        prompt_tokens = len(body["prompt"]) - resumed
        num_words = len(self.words[: body["max_tokens"]])
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": num_words,
            "total_tokens": prompt_tokens + num_words,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
        evidence: dict[str, Any] = {"cached_by_tier": {"hbm": 0, "dram": cached_tokens}}
        if "kv_transfer_params" in body:
            evidence["prefill_end_at"] = 7.5 if "do_remote_decode" in str(body) else None
        await response.write(_event({"choices": [], "usage": usage, "moontide": evidence}))
        await response.write(b"data: [DONE]\n\n")


async def _die(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """As a process that is killed a moment after it wrote: the Conductor has read that."""
    await asyncio.sleep(0.01)
    assert request.transport is not None
    request.transport.abort()
    return response


def _event(value: dict[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps({"id": "x", "object": "text_completion", **value}).encode() + b"\n\n"
    )
