"""Answers whose worker is lost after the first token: another one goes on, without repetition or
gap."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from .fake_model import MODEL
from .fake_worker import FakeWorker
from .fakes import Cluster, in_loop, metric, nothing_left, running

WORDS = ["Now", " is", " the", " time", "."]
TEXT = "".join(WORDS)
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 16}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}


async def chunks(cluster: Cluster, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    usage = {"stream_options": {"include_usage": True}}
    events = await cluster.stream(path, body | usage)
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize("how", ["fail_after", "error_after", "hold_after"])
@pytest.mark.parametrize("lost_at", [1, 2, 4])
@in_loop
async def test_a_stream_goes_on_at_another_worker(how: str, lost_at: int) -> None:
    bad = FakeWorker("a", words=WORDS, **{how: lost_at})
    good = FakeWorker("b", words=WORDS, cached_tokens=2)
    async with running(bad, good, token_timeout=0.3) as cluster:
        got = await chunks(cluster, "/v1/completions", BODY)
        parts = [chunk["choices"][0] for chunk in got[:-1]]
        assert [part["text"] for part in parts] == WORDS
        assert [part["finish_reason"] for part in parts] == [None] * 4 + ["stop"]
        assert not any("token_ids" in part for part in parts)
        assert got[-1]["usage"]["prompt_tokens"] == 2
        assert got[-1]["usage"]["completion_tokens"] == len(WORDS)
        first, second = bad.requests[0], good.requests[0]
        assert second["prompt"] == first["prompt"] + list(range(lost_at))
        assert second["resume_tokens"] == lost_at
        assert (second["seed"], second["max_tokens"]) == (first["seed"], 16)
        assert "resume_tokens" not in first
        await nothing_left(cluster, bad, good)
        assert await metric(cluster, "resumes_total") == 1


@in_loop
async def test_a_chat_stream_goes_on_too_and_shows_token_ids_only_where_asked() -> None:
    bad, good = FakeWorker("a", words=WORDS, fail_after=2), FakeWorker("b", words=WORDS)
    async with running(bad, good) as cluster:
        got = await chunks(
            cluster, "/v1/chat/completions", CHAT | {"return_token_ids": True, "seed": 7}
        )
    choices = [chunk["choices"][0] for chunk in got[:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == TEXT
    shown = [token for choice in choices for token in choice.get("token_ids") or []]
    assert shown == [0, 1, 2, 3, 4]
    assert [choice["delta"].get("role") for choice in choices].count("assistant") == 1
    assert [bad.requests[0]["seed"], good.requests[0]["seed"]] == [7, 7]


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "plain"])
@in_loop
async def test_workers_may_be_lost_one_after_the_other_but_not_without_end(
    streaming: bool,
) -> None:
    every = [FakeWorker(f"w{n}", words=WORDS, fail_after=n + 1) for n in range(3)]
    last = FakeWorker("w3", words=WORDS)
    async with running(*every, last) as cluster:
        if streaming:
            got = await chunks(cluster, "/v1/completions", BODY)
            assert "".join(chunk["choices"][0]["text"] for chunk in got[:-1]) == TEXT
        else:
            _, answer, headers = await cluster.post("/v1/completions", BODY)
            assert answer["choices"][0]["text"] == TEXT
            assert answer["usage"]["completion_tokens"] == len(WORDS)
            assert headers["X-Moontide-Attempts"] == "4"
        assert [worker.requests[0].get("resume_tokens", 0) for worker in every] == [0, 1, 2]
        assert last.requests[0]["resume_tokens"] == 3
        await nothing_left(cluster, *every, last)


@in_loop
async def test_the_fourth_lost_worker_is_the_last() -> None:
    every = [FakeWorker(f"w{n}", words=WORDS, fail_after=1 + n % 4) for n in range(5)]
    every[4].fail_after = None
    async with running(*every) as cluster:
        events = await cluster.stream("/v1/completions", BODY)
        error = json.loads(events[-1])["error"]
        assert "4 workers were tried" in error["message"]
        assert "cut off after 4 tokens" in error["message"]
        assert every[4].requests == []
        await nothing_left(cluster, *every)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "plain"])
@in_loop
async def test_a_worker_lost_after_the_last_token_costs_only_its_usage(streaming: bool) -> None:
    bad, other = FakeWorker("a", words=WORDS, fail_after=5), FakeWorker("b", words=WORDS)
    bad.cached_tokens = 2
    async with running(bad, other) as cluster:
        if streaming:
            usage = (await chunks(cluster, "/v1/completions", BODY))[-1]["usage"]
        else:
            status, answer = await cluster.complete(max_tokens=16)
            assert (status, answer["choices"][0]["text"]) == (200, TEXT)
            usage = answer["usage"]
        assert usage == {
            "prompt_tokens": 2,
            "completion_tokens": 5,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert other.requests == []
        assert await metric(cluster, "prompt_tokens_total") == 0  # nothing was measured
        await nothing_left(cluster, bad, other)


@in_loop
async def test_a_worker_that_refuses_to_go_on_is_not_the_clients_fault() -> None:
    async def refuses(worker: FakeWorker, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no"}}, status=400)

    bad, strict = FakeWorker("a", words=WORDS, fail_after=2), FakeWorker("b", fail=refuses)
    good = FakeWorker("c", words=WORDS)
    async with running(bad, strict, good) as cluster:
        status, answer = await cluster.complete(max_tokens=16)
        assert (status, answer["choices"][0]["text"]) == (200, TEXT)
        assert len(strict.requests) == 1
        refused = 'worker_failures_total{cause="refused",part="whole"}'
        assert await metric(cluster, refused) == 1


@in_loop
async def test_a_named_worker_that_is_lost_is_not_replaced() -> None:
    bad, other = FakeWorker("a", words=WORDS, fail_after=2), FakeWorker("b", words=WORDS)
    async with running(bad, other) as cluster:
        url = f"{cluster.url}/v1/completions"
        named = {"X-Moontide-Worker": "a"}
        async with cluster.http.post(url, json=BODY, headers=named) as response:
            assert response.status == 503
        assert other.requests == []
        await nothing_left(cluster, bad, other)
