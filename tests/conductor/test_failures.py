"""Workers that fail before, at and after the first token; clients that go away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from moontide.conductor.upstream import calls, stream

from ..waiting import until
from .fake_model import MODEL
from .fake_worker import FakeWorker
from .fakes import Cluster, in_loop, leaving_client, running

BODY = {"model": MODEL, "prompt": "hi"}
Failing = Callable[[FakeWorker, web.Request], Awaitable[web.StreamResponse]]


async def dies(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def is_busy(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "queue full"}}, status=503)


async def has_a_bug(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "oops"}}, status=500)


async def talks_nonsense(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"data: {nonsense\n\n", content_type="text/event-stream")


async def says_nothing(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"data: [DONE]\n\n", content_type="text/event-stream")


async def ends_early(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"", content_type="text/event-stream")


async def keeps_ids_to_itself(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    body = b'data: {"choices": [{"text": "Hel", "finish_reason": null}]}\n\n'
    return web.Response(body=body, content_type="text/event-stream")


async def refuses(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "top_k is 7; at most 5"}}, status=400)


FAILURES: list[tuple[Failing, int]] = [
    (dies, 503),
    (is_busy, 429),
    (has_a_bug, 502),
    (talks_nonsense, 502),
    (says_nothing, 502),
    (keeps_ids_to_itself, 502),
    (ends_early, 503),
]


@pytest.mark.parametrize(("failing", "status"), FAILURES, ids=[f.__name__ for f, _ in FAILURES])
@in_loop
async def test_a_failure_before_the_first_token_goes_to_another_worker(
    failing: Failing, status: int
) -> None:
    bad, good = FakeWorker("a-bad", fail=failing), FakeWorker("b-good")
    async with running(bad, good) as cluster:
        code, answer, headers = await cluster.post("/v1/completions", BODY)
        assert code == 200
        assert answer["choices"][0]["text"] == "Hello!"
        assert headers["X-Moontide-Worker"] == "b-good"
        assert headers["X-Moontide-Attempts"] == "2"
        assert bad.requests
        cluster.leave(good)

        async def alone() -> bool:
            return len((await cluster.status())["workers"]) == 1

        await until(alone, "only the failing worker is left")
        await cluster.wait_usable("a-bad")
        code, answer, _ = await cluster.post("/v1/completions", BODY)
        assert code == status
        assert "1 worker was tried" in answer["error"]["message"]


@in_loop
async def test_what_the_worker_refuses_is_refused_without_a_second_try() -> None:
    bad, good = FakeWorker("a-bad", fail=refuses), FakeWorker("b-good")
    async with running(bad, good) as cluster:
        status, answer = await cluster.complete()
        assert status == 400
        assert answer["error"]["message"] == "top_k is 7; at most 5"
        assert good.requests == []


@in_loop
async def test_r57_a_dead_worker_is_left_out_at_once_and_returns_by_itself() -> None:
    worker, other = FakeWorker("a"), FakeWorker("b")
    async with running(worker, other) as cluster:
        port = int(worker.url.rsplit(":", 1)[1])
        await worker.stop()
        for _ in range(3):
            status, _, headers = await cluster.post("/v1/completions", BODY)
            assert (status, headers["X-Moontide-Worker"]) == (200, "b")
        assert (await cluster.worker("a"))["health"] == "unreachable"
        await worker.start(port)
        await cluster.wait_usable("a")
        _, _, headers = await cluster.post("/v1/completions", BODY)
        assert headers["X-Moontide-Worker"] == "a"


@pytest.mark.parametrize("how", ["connection breaks", "error event"])
@in_loop
async def test_a_stream_that_nobody_can_go_on_with_ends_with_an_error_event(how: str) -> None:
    worker = FakeWorker(hold_after=2)
    worker.error_after, worker.fail_after = (2, None) if how == "error event" else (None, 2)
    async with running(worker) as cluster:
        url = f"{cluster.url}/v1/completions"
        async with cluster.http.post(url, json=BODY | {"stream": True}) as response:
            begun = (await response.content.readuntil(b"lo")).decode()
            worker.released.set()
            text = begun + await response.text()
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
        assert texts == ["Hel", "lo"]
        error = json.loads(events[-1])["error"]
        assert error["code"] == ("worker_failed" if how == "error event" else "worker_lost")
        assert "cut off after 2 tokens" in error["message"]
        assert (await cluster.worker("w0"))["open_requests"] == 0


@pytest.mark.parametrize("how", ["connection breaks", "error event", "silence"])
@in_loop
async def test_a_plain_answer_that_a_worker_gave_half_of_comes_whole_from_another(how: str) -> None:
    bad, good = FakeWorker("a-bad"), FakeWorker("b-good")
    bad.fail_after = 2 if how == "connection breaks" else None
    bad.error_after = 2 if how == "error event" else None
    bad.hold_after = 2 if how == "silence" else None
    async with running(bad, good, token_timeout=0.5) as cluster:
        status, answer, headers = await cluster.post("/v1/completions", BODY)
        assert (status, answer["choices"][0]["text"]) == (200, "Hello!")
        assert answer["usage"]["completion_tokens"] == 3
        assert headers["X-Moontide-Worker"] == "b-good"
        assert headers["X-Moontide-Attempts"] == "2"
        await until(lambda: bad.running == 0, "the failing worker has ended it")
        assert (await cluster.worker("a-bad"))["open_requests"] == 0


@in_loop
async def test_a_worker_lost_in_a_plain_answer_is_a_retryable_503() -> None:
    worker = FakeWorker(fail_after=2)
    async with running(worker) as cluster:
        status, answer = await cluster.complete()
        assert status == 503
        assert answer["error"]["retryable"] is True


@in_loop
async def test_r21_a_silent_worker_is_given_up_at_the_deadline() -> None:
    worker = FakeWorker(hold_after=0)
    async with running(worker, FakeWorker("w1"), first_token_timeout=0.5) as cluster:
        started = asyncio.get_running_loop().time()
        status, _, headers = await cluster.post("/v1/completions", BODY)
        assert (status, headers["X-Moontide-Worker"]) == (200, "w1")
        assert asyncio.get_running_loop().time() - started < 5
        await until(lambda: worker.aborted == 1, "the worker sees the abort")


@in_loop
async def test_r21_a_stream_that_stalls_ends_with_an_error_event() -> None:
    worker = FakeWorker(hold_after=1)
    async with running(worker, token_timeout=0.5) as cluster:
        events = await cluster.stream("/v1/completions", BODY)
        assert "made no progress for 0.5 s" in json.loads(events[-1])["error"]["message"]
        await until(lambda: worker.running == 0, "the worker sees the abort")


@pytest.mark.parametrize("begun", [False, True])
@in_loop
async def test_r21_while_the_conductor_itself_is_stopped_nobody_is_found_silent(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (stream, calls):
        monkeypatch.setattr(module, "SLICE_SECONDS", 0.1)
    turn = asyncio.Event()

    async def waits(fake: FakeWorker, request: web.Request) -> web.StreamResponse:
        await turn.wait()
        return await fake.answer(request, {"prompt": [1], "max_tokens": 3})

    worker = FakeWorker(hold_after=1) if begun else FakeWorker(fail=waits)
    async with running(worker, first_token_timeout=0.5, token_timeout=0.5) as cluster:
        request = asyncio.create_task(cluster.complete())
        await until(lambda: worker.running == 1, "the request is there")
        time.sleep(1.0)  # the loop that all share is held up
        worker.released.set()
        turn.set()
        status, answer = await request
        assert (status, answer["choices"][0]["text"]) == (200, "Hello!")


@in_loop
async def test_r23_a_request_that_only_waits_behind_others_is_not_given_up() -> None:
    worker = FakeWorker(words=["x"] * 400)
    worker.hold_after = 399
    turn = asyncio.Event()

    async def queued(fake: FakeWorker, request: web.Request) -> web.StreamResponse:
        await turn.wait()
        return await fake.answer(request, {"prompt": [1], "max_tokens": 1})

    async with running(worker, first_token_timeout=1.5, token_timeout=30) as cluster:
        first = asyncio.create_task(cluster.complete(max_tokens=400))
        await until(lambda: worker.running == 1, "the first request streams")
        worker.fail = queued
        second = asyncio.create_task(cluster.complete())
        await until(lambda: worker.running == 2, "the second waits")
        worker.words, worker.hold_after = ["x", "y"], None
        for _ in range(5):  # others' tokens are its progress, for longer than its own deadline
            worker.fail = None
            assert (await cluster.complete())[0] == 200
            await asyncio.sleep(0.5)
        assert not second.done()
        turn.set()
        assert (await second)[0] == 200
        worker.released.set()
        await first


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("held", [0, 1], ids=["before the first token", "after it"])
@in_loop
async def test_r17_a_client_that_goes_away_ends_the_workers_request_at_once(
    streaming: bool, held: int
) -> None:
    worker = FakeWorker(hold_after=held)
    async with running(worker) as cluster:
        for _ in range(3):
            await _abort_one(cluster, worker, streaming)
        assert worker.aborted == 3
        assert (await cluster.worker("w0"))["open_requests"] == 0
        assert (await cluster.status())["requests_in_flight"] == 0
        worker.hold_after = None
        assert (await cluster.complete())[0] == 200


async def _abort_one(cluster: Cluster, worker: FakeWorker, streaming: bool) -> None:
    body = BODY | {"stream": streaming}
    async with leaving_client(cluster, body) as asking:
        await until(lambda: worker.running == 1, "the worker has the request")
        if streaming and worker.hold_after:
            await (await asking).content.readline()
    await until(lambda: worker.running == 0, "the worker sees the abort")


@in_loop
async def test_r34_health_checks_leave_open_requests_alone() -> None:
    worker = FakeWorker(hold_after=1)
    async with running(worker) as cluster:
        waiting = [asyncio.create_task(cluster.complete()) for _ in range(3)]
        await until(lambda: worker.running == 3, "three requests run")
        before = worker.checks
        await until(lambda: worker.checks >= before + 3, "checks go on")
        assert (await cluster.worker("w0"))["open_requests"] == 3
        worker.released.set()
        await asyncio.gather(*waiting)
        assert (await cluster.worker("w0"))["open_requests"] == 0


@in_loop
async def test_r69_a_kept_connection_that_was_closed_is_replaced_once() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        assert (await cluster.complete())[0] == 200
        port = int(worker.url.rsplit(":", 1)[1])
        await worker.stop()  # closes the kept connection
        await worker.start(port)
        status, _, headers = await cluster.post("/v1/completions", BODY)
        assert status == 200
        assert headers["X-Moontide-Attempts"] == "1"


@in_loop
async def test_r69_an_upstream_that_closes_idle_connections_after_a_second() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        await worker.stop()
        await worker.start(int(worker.url.rsplit(":", 1)[1]), keepalive_s=0.05)
        for pause in (0.0, 0.04, 0.05, 0.06, 0.2):
            status, _, headers = await cluster.post("/v1/completions", BODY)
            assert (status, headers["X-Moontide-Attempts"]) == (200, "1")
            await asyncio.sleep(pause)


@in_loop
async def test_the_request_id_goes_through_when_it_is_harmless() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        for given, kept in [("my-id-7", True), ("x" * 200, False), ("ü", False)]:
            headers = {"X-Request-Id": given}
            url = f"{cluster.url}/v1/completions"
            async with cluster.http.post(url, json=BODY, headers=headers) as response:
                assert response.status == 200
                assert (response.headers["X-Request-Id"] == given) is kept
        assert worker.request_ids[0] == "my-id-7"
