"""Hand-offs in which a worker fails, at every moment; clients that go away, in every state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from moontide.conductor.cluster import watcher, workers
from moontide.conductor.upstream.stream import SLICE_SECONDS

from ..waiting import until
from .conftest import CHECK_SECONDS
from .fake_model import MODEL
from .fake_worker import FakeWorker
from .fakes import (
    Cluster,
    decode_worker,
    in_loop,
    leaving_client,
    metric,
    nothing_left,
    prefill_worker,
    two_nodes,
)

PROMPT = "hello there"
BODY = {"model": MODEL, "prompt": PROMPT}
Failing = Callable[[FakeWorker, web.Request], Awaitable[web.StreamResponse]]


def answers(status: int, message: str) -> Failing:
    async def failing(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": message}}, status=status)

    return failing


async def whole(cluster: Cluster) -> dict[str, str]:
    """Asks; the answer has every token once. Its headers."""
    status, answer, headers = await cluster.post("/v1/completions", BODY)
    assert status == 200, answer
    assert answer["choices"][0]["text"] == "Hello!"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    return headers


DECODE_FAILURES = {
    "busy": {"fail": answers(503, "queue full")},
    "broken": {"fail": answers(500, "oops")},
    "dies while queued": {"dies_when": "queued"},
    "dies when reserved": {"dies_when": "reserved"},
    "does not reserve": {"reserves": False},
}


@pytest.mark.parametrize("how", DECODE_FAILURES)
@in_loop
async def test_a_decode_worker_lost_before_token_one_is_replaced(how: str) -> None:
    p, other = prefill_worker(hold_after=0), decode_worker("d2")
    bad = decode_worker("d1", **DECODE_FAILURES[how])
    async with two_nodes(p, bad, other) as cluster:
        headers = await _whole_once_failed(cluster, bad, p)
        assert headers["X-Moontide-Worker"] == "d2"
        assert headers["X-Moontide-Prefill-Worker"] == "p"
        assert len(bad.requests) == 1
        assert other.told == [0]
        await nothing_left(cluster, p, bad, other)
        assert await metric(cluster, "resumes_total") == 0


@in_loop
async def test_the_prefill_goes_on_while_its_decode_worker_is_replaced() -> None:
    p, bad, other = prefill_worker(hold_after=0), decode_worker("d1"), decode_worker("d2")
    async with two_nodes(p, bad, other) as cluster:
        waiting = asyncio.create_task(whole(cluster))
        await until(lambda: p.running == 1 and bad.reserved == 1, "the prefill runs")
        await bad.stop()
        await until(lambda: other.reserved == 1, "another one has reserved")
        p.released.set()
        headers = await waiting
        assert headers["X-Moontide-Worker"] == "d2"
        assert headers["X-Moontide-Attempts"] == "1"
        assert (len(p.requests), p.aborted) == (1, 0)
        handoff = p.requests[0]["kv_transfer_params"]["handoff_id"]
        assert other.requests[0]["kv_transfer_params"]["handoff_id"] == handoff
        assert await metric(cluster, "decode_repicks_total") == 1
        failed = 'worker_failures_total{cause="unreachable",part="decode"}'
        assert await metric(cluster, failed) == 1
        await nothing_left(cluster, p, other)


@pytest.mark.parametrize("how", DECODE_FAILURES)
@in_loop
async def test_without_another_decode_worker_the_prefill_worker_answers_alone(how: str) -> None:
    p, bad = prefill_worker(hold_after=0), decode_worker(**DECODE_FAILURES[how])
    async with two_nodes(p, bad) as cluster:
        headers = await _whole_once_failed(cluster, bad, p)
        assert headers["X-Moontide-Worker"] == "p"
        assert headers["X-Moontide-Reason"] == "fallback"
        assert "X-Moontide-Prefill-Worker" not in headers
        assert headers["X-Moontide-Attempts"] == "2"
        await nothing_left(cluster, p, bad)


async def _whole_once_failed(cluster: Cluster, bad: FakeWorker, p: FakeWorker) -> dict[str, str]:
    """Token 1 comes only after the decode worker has failed."""
    waiting = asyncio.create_task(whole(cluster))

    async def failed() -> bool:
        causes = ("busy", "broken", "unreachable")
        lines = [f'worker_failures_total{{cause="{cause}",part="decode"}}' for cause in causes]
        return any([await metric(cluster, line) for line in lines])

    await until(failed, f"{bad.name} has failed")
    p.released.set()
    return await waiting


PREFILL_FAILURES = {
    "busy": {"fail": answers(503, "queue full")},
    "broken": {"fail": answers(500, "oops")},
    "dies": {"fail_after": 0},
    "error event": {"error_after": 0},
    "silent": {"hold_after": 0},
}


@pytest.mark.parametrize("others", [True, False], ids=["another prefill worker", "none"])
@pytest.mark.parametrize("how", PREFILL_FAILURES)
@in_loop
async def test_a_prefill_worker_lost_before_token_one(how: str, others: bool) -> None:
    bad, d = prefill_worker("p1", **PREFILL_FAILURES[how]), decode_worker()
    every = [bad, d, *([prefill_worker("p2")] if others else [])]
    async with two_nodes(*every, first_token_timeout=0.5) as cluster:
        headers = await whole(cluster)
        assert headers["X-Moontide-Worker"] == "d"
        assert headers.get("X-Moontide-Prefill-Worker") == ("p2" if others else None)
        assert len(bad.requests) == 1
        await nothing_left(cluster, *every)


@pytest.mark.parametrize("side", ["p", "d"])
@in_loop
async def test_what_either_side_refuses_is_refused_with_its_words(side: str) -> None:
    refuses = answers(400, "the prompt has 11 tokens; 8 fit the pool")
    p, d = prefill_worker(), decode_worker()
    (p if side == "p" else d).fail = refuses
    async with two_nodes(p, d, FakeWorker("other", ready=False)) as cluster:
        status, answer, _ = await cluster.post("/v1/completions", BODY)
        assert status == 400
        assert answer["error"]["message"] == "the prompt has 11 tokens; 8 fit the pool"
        await nothing_left(cluster, p, d)


@in_loop
async def test_a_prefill_worker_lost_after_token_one_harms_nothing() -> None:
    p, d = prefill_worker(hold_after=1, fail_after=1), decode_worker()
    async with two_nodes(p, d) as cluster:
        waiting = asyncio.create_task(whole(cluster))
        await until(lambda: d.told, "token 1 has passed")
        p.released.set()
        headers = await waiting
        assert headers["X-Moontide-Attempts"] == "1"
        assert headers["X-Moontide-Cached-Tokens"] == "0"
        failed = 'worker_failures_total{cause="unreachable",part="prefill"}'
        assert await metric(cluster, failed) == 1
        await nothing_left(cluster, p, d)


LATER_FAILURES = {
    "when it is told token 1": ({"dies_when": "told"}, 1),
    "before token 2": ({"fail_after": 1}, 1),
    "after token 2": ({"fail_after": 2}, 2),
    "error event": ({"error_after": 2}, 2),
    "silent": ({"hold_after": 2}, 2),
}


@pytest.mark.parametrize("others", [True, False], ids=["another decode worker", "none"])
@pytest.mark.parametrize("how", LATER_FAILURES)
@in_loop
async def test_a_decode_worker_lost_later_is_resumed_elsewhere(how: str, others: bool) -> None:
    fields, resumed = LATER_FAILURES[how]
    p, bad = prefill_worker(), decode_worker("d1", **fields)
    other = decode_worker("d2") if others else p
    async with two_nodes(*dict.fromkeys((p, bad, other)), token_timeout=0.5) as cluster:
        headers = await whole(cluster)
        assert headers["X-Moontide-Worker"] == other.name
        assert headers["X-Moontide-Reason"] == "resume"
        body = other.requests[-1]
        assert body["resume_tokens"] == resumed
        assert body["prompt"][-resumed:] == list(range(resumed))
        assert body["seed"] == p.requests[0]["seed"]
        assert "kv_transfer_params" not in body
        assert await metric(cluster, "resumes_total") == 1
        await nothing_left(cluster, p, bad, other)


@in_loop
async def test_a_first_token_whose_answer_is_lost_is_told_again() -> None:
    p, d = prefill_worker(), decode_worker(lost_answers=2, hold_after=1)
    async with two_nodes(p, d) as cluster:
        waiting = asyncio.create_task(whole(cluster))
        await until(lambda: d.told == [0, 0, 0], "it was told three times")
        d.released.set()
        assert (await waiting)["X-Moontide-Attempts"] == "1"
        await nothing_left(cluster, p, d)


@in_loop
async def test_a_decode_worker_that_forgot_the_handoff_is_one_that_failed() -> None:
    p, d = prefill_worker(hold_after=0), decode_worker("d1")
    async with two_nodes(p, d, decode_worker("d2")) as cluster:
        waiting = asyncio.create_task(whole(cluster))
        await until(lambda: p.running == 1, "the prefill runs")
        d.handoffs.clear()  # answers 404 from now on
        p.released.set()
        headers = await waiting
        assert headers["X-Moontide-Worker"] == "d2"
        assert headers["X-Moontide-Reason"] == "resume"
        await nothing_left(cluster, p, d)


@in_loop
async def test_when_both_sides_are_lost_the_answer_is_an_error() -> None:
    p, d = prefill_worker(fail_after=0), decode_worker(fail=answers(500, "oops"))
    async with two_nodes(p, d) as cluster:
        status, answer, _ = await cluster.post("/v1/completions", BODY)
        assert status == 503
        assert "2 workers were tried" in answer["error"]["message"]
        await nothing_left(cluster, p, d)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize(
    "state", ["queued", "reserved", "prefilling", "waits for token 2", "later"]
)
@in_loop
async def test_r17_a_client_that_goes_away_frees_both_ends(state: str, streaming: bool) -> None:
    p, d = prefill_worker(), decode_worker()
    if state == "queued":
        d.holds_when_queued = True
    elif state in ("reserved", "prefilling"):
        p.hold_after = 0
    else:
        d.hold_after = 1 if state == "waits for token 2" else 2
    reached = {
        "queued": lambda: d.queued == 1,
        "reserved": lambda: d.reserved == 1,
        "prefilling": lambda: p.running == 1,
        "waits for token 2": lambda: d.told == [0],
        "later": lambda: d.told == [0],
    }
    async with two_nodes(p, d) as cluster:
        async with leaving_client(cluster, BODY | {"stream": streaming}):
            await until(reached[state], f"the request is {state}")
        await nothing_left(cluster, p, d)
        assert p.aborted + d.aborted >= 1
        d.holds_when_queued, p.hold_after, d.hold_after = False, None, None
        await whole(cluster)


@in_loop
async def test_r57_a_stopped_prefill_worker_is_left_after_two_missed_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGSTOP as others see it: connections stay open, nothing is answered."""
    assert 2 * (CHECK_SECONDS + watcher.CHECK_TIMEOUT_SECONDS) + SLICE_SECONDS < 10
    assert workers.SUSPECT_SECONDS + SLICE_SECONDS < 10
    monkeypatch.setattr(watcher, "CHECK_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(workers, "SUSPECT_SECONDS", 0.5)
    p, d = prefill_worker(), decode_worker()
    p.hold_after = 0
    async with two_nodes(p, d) as cluster:
        waiting = asyncio.create_task(whole(cluster))
        await until(lambda: p.running == 1, "the prefill runs")
        p.answers_checks.clear()
        headers = await waiting
        assert headers["X-Moontide-Worker"] == "d"
        p.answers_checks.set()
        await nothing_left(cluster, p, d)


@in_loop
async def test_an_answer_that_takes_too_long_ends_at_its_deadline() -> None:
    p, d = prefill_worker(), decode_worker(hold_after=1)
    async with two_nodes(p, d, request_timeout=0.5) as cluster:
        status, answer, _ = await cluster.post("/v1/completions", BODY)
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        assert "within 0.5 s; 1 tokens of it" in answer["error"]["message"]
        await nothing_left(cluster, p, d)
