"""What is refused, and that the refusal names the values."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from moontide.conductor.cluster.models import Model

from ..waiting import until
from .fake_model import CONTEXT_TOKENS, MODEL
from .fake_worker import FakeWorker
from .fakes import in_loop, running

USER = {"role": "user", "content": "hi"}


def _message(role: str = "user", content: object = "hi", **more: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": role, "content": content, **more}]}


COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [USER]}
REFUSED: list[tuple[str, object, str, str]] = [
    # path, body, error.param, part of the message
    ("completions", {"prompt": "hi"}, "", "model"),
    ("completions", {"model": MODEL}, "", "prompt"),
    ("completions", COMPLETION | {"model": 3}, "model", "Expected `str`"),
    ("completions", COMPLETION | {"model": "m" * 257}, "model", "length <= 256"),
    ("completions", COMPLETION | {"stop": "x" * 1025}, "stop", "length <= 1024"),
    ("route", {"model": MODEL, "messages": []}, "messages", "length >= 1"),
    ("completions", COMPLETION | {"prompt": 3}, "prompt", "got `int`"),
    ("completions", COMPLETION | {"prompt": ["a", "b"]}, "prompt", "2 prompts"),
    ("completions", COMPLETION | {"prompt": []}, "prompt", "0 prompts"),
    ("completions", COMPLETION | {"prompt": ""}, "prompt", "0 tokens"),
    ("completions", COMPLETION | {"prompt": [[]]}, "prompt", "0 tokens"),
    ("completions", COMPLETION | {"prompt": [1, "a"]}, "prompt", "2 prompts"),
    ("completions", COMPLETION | {"prompt": [-1]}, "prompt[0]", ">= 0"),
    ("completions", COMPLETION | {"temperature": 3}, "temperature", "<= 2.0"),
    ("completions", COMPLETION | {"top_p": 0}, "top_p", "> 0.0"),
    ("completions", COMPLETION | {"max_tokens": 0}, "max_tokens", ">= 1"),
    ("completions", COMPLETION | {"max_tokens": "9"}, "max_tokens", "got `str`"),
    ("completions", COMPLETION | {"stop": [""]}, "stop[0]", "length >= 1"),
    ("completions", COMPLETION | {"stop": ["x"] * 17}, "stop", "length <= 16"),
    ("completions", COMPLETION | {"seed": 2**63}, "seed", "9223372036854775807"),
    ("completions", COMPLETION | {"n": 2}, "n", "n=2"),
    ("completions", COMPLETION | {"n": True}, "n", "n=True"),
    ("completions", COMPLETION | {"best_of": 2}, "best_of", "best_of=2"),
    ("completions", COMPLETION | {"echo": True}, "echo", "echo=True"),
    ("completions", COMPLETION | {"logprobs": 1}, "logprobs", "logprobs=1"),
    ("completions", COMPLETION | {"suffix": "x"}, "suffix", "suffix='x'"),
    ("completions", COMPLETION | {"logit_bias": {"1": 5}}, "logit_bias", "logit_bias="),
    ("completions", COMPLETION | {"presence_penalty": 0.5}, "presence_penalty", "0.5"),
    ("completions", [1], "", "Expected `object`"),
    ("chat/completions", CHAT | {"messages": []}, "messages", "length >= 1"),
    ("chat/completions", CHAT | {"tools": [{"type": "function"}]}, "tools", "tools="),
    ("chat/completions", CHAT | {"tool_choice": "required"}, "tool_choice", "required"),
    ("chat/completions", CHAT | {"logprobs": True}, "logprobs", "logprobs=True"),
    ("chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs", "top_logprobs=2"),
    ("chat/completions", CHAT | {"modalities": ["audio"]}, "modalities", "audio"),
    (
        "chat/completions",
        CHAT | {"response_format": {"type": "json_object"}},
        "response_format",
        "json_object",
    ),
    (
        "chat/completions",
        CHAT | {"max_tokens": 1, "max_completion_tokens": 2},
        "max_tokens",
        "max_completion_tokens 2",
    ),
    ("chat/completions", _message(role="tool"), "messages[0].role", "tool"),
    ("chat/completions", _message(content=None), "messages[0].content", "got `null`"),
    (
        "chat/completions",
        _message(content=[{"type": "image_url"}]),
        "messages[0].content[0].type",
        "image_url",
    ),
    (
        "chat/completions",
        _message(role="assistant", tool_calls=[{}]),
        "messages[0].tool_calls",
        "not supported",
    ),
    ("route", {"model": MODEL}, "prompt", "neither prompt nor messages"),
    ("route", COMPLETION | CHAT, "prompt", "prompt and messages"),
]


@in_loop
async def test_a_wrong_request_is_a_400_that_names_field_and_value() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        for path, body, param, text in REFUSED:
            status, answer, _ = await cluster.post(f"/v1/{path}", body)
            error = answer["error"]
            told = f"{path} {body}: {status} {error}"
            assert status == 400, told
            assert text in error["message"], told
            assert (error["param"] or "") == param, told
            assert error["type"] == "invalid_request_error", told
            assert set(error) == {"message", "type", "param", "code", "retryable"}, told
    assert worker.requests == []


@in_loop
async def test_an_oversized_prompt_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> list[int]:
        raise AssertionError("tokenised or hashed")

    text, longest = "a" * 100_000, len("<|im_start|>")
    async with running(FakeWorker()) as cluster:
        monkeypatch.setattr(Model, "encode_text", never)
        monkeypatch.setattr(Model, "encode_rendered", never)
        monkeypatch.setattr(Model, "keys", never)
        status, answer = await cluster.complete(text)
        assert (status, answer["error"]["param"]) == (400, "prompt")
        assert f"{-(-len(text) // longest)} tokens at least" in answer["error"]["message"]
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        status, answer, _ = await cluster.post("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, "messages")
        status, answer = await cluster.complete([1] * CONTEXT_TOKENS)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@in_loop
async def test_a_prompt_over_the_context_is_refused_with_both_counts() -> None:
    async with running(FakeWorker()) as cluster:
        status, answer = await cluster.complete("a" * (CONTEXT_TOKENS + 5))
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
        assert f"{CONTEXT_TOKENS + 5} tokens" in answer["error"]["message"]
        assert f"context of {CONTEXT_TOKENS}" in answer["error"]["message"]
        status, answer = await cluster.complete("a" * 500, max_tokens=13)
        assert status == 400
        assert answer["error"]["param"] == "max_tokens"
        assert "together 513" in answer["error"]["message"]
        status, _ = await cluster.complete("a" * 500, max_tokens=12)
        assert status == 200
        status, _ = await cluster.complete("a" * CONTEXT_TOKENS)
        assert status == 400  # no room for an answer


@in_loop
async def test_an_unknown_model_is_a_404_that_names_the_known_ones() -> None:
    async with running(FakeWorker(model="alpha"), FakeWorker("w1", model="beta")) as cluster:
        status, answer = await cluster.complete(model="gamma")
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    assert answer["error"]["param"] == "model"
    assert "'gamma'" in answer["error"]["message"]
    assert "alpha, beta" in answer["error"]["message"]


@in_loop
async def test_a_model_without_a_chat_template_takes_completions_only() -> None:
    async with running(FakeWorker(template=None)) as cluster:
        status, answer, _ = await cluster.post("/v1/chat/completions", CHAT)
        assert status == 400
        assert "no chat template" in answer["error"]["message"]
        assert (await cluster.complete())[0] == 200


@in_loop
async def test_a_template_may_refuse_the_messages() -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}x"
    async with running(FakeWorker(template=template)) as cluster:
        status, answer, _ = await cluster.post("/v1/chat/completions", _message(role="system"))
        assert status == 400
        assert "user first" in answer["error"]["message"]


@in_loop
async def test_bodies_that_are_no_json_too_large_or_of_another_type() -> None:
    async with running(FakeWorker(), max_body=2048) as cluster:
        url = f"{cluster.url}/v1/completions"
        cases: list[tuple[bytes, str, int]] = [
            (b"{", "application/json", 400),
            (b"", "application/json", 400),
            (b"\xff\xfe", "application/json", 400),
            (b'{"model": "m", "n": ' + b"[" * 1500, "application/json", 400),
            (b"x" * 3000, "application/json", 413),
            (b"{}", "text/plain", 415),
        ]
        for data, kind, expected in cases:
            headers = {"Content-Type": kind}
            async with cluster.http.post(url, data=data, headers=headers) as response:
                assert response.status == expected, data[:40]
                error = (await response.json())["error"]
                assert error["type"] == "invalid_request_error"
        assert (await cluster.complete())[0] == 200


@in_loop
async def test_without_any_worker_requests_are_503_and_retryable() -> None:
    async with running() as cluster:
        status, answer, headers = await cluster.post("/v1/completions", COMPLETION)
        assert status == 503
        assert answer["error"]["retryable"] is True
        assert int(headers["Retry-After"]) >= 1
        async with cluster.http.get(f"{cluster.url}/readyz") as response:
            assert response.status == 503
        async with cluster.http.get(f"{cluster.url}/healthz") as response:
            assert response.status == 200


@in_loop
async def test_a_model_whose_workers_left_is_503_not_404() -> None:
    worker, other = FakeWorker(), FakeWorker("w1", model="other")
    async with running(worker, other) as cluster:
        cluster.leave(worker)

        async def left() -> bool:
            return await cluster.worker("w0") == {}

        await until(left, "the worker is gone")
        status, answer = await cluster.complete()
        assert status == 503
        assert answer["error"]["code"] == "no_worker"


@in_loop
async def test_r55_more_than_max_in_flight_are_refused_at_once() -> None:
    worker = FakeWorker(hold_after=0)
    async with running(worker, max_in_flight=2) as cluster:
        waiting = [asyncio.create_task(cluster.complete()) for _ in range(2)]
        await until(lambda: worker.running == 2, "two requests run")
        status, answer, headers = await cluster.post("/v1/completions", COMPLETION)
        assert status == 429
        assert answer["error"]["type"] == "rate_limit_error"
        assert int(headers["Retry-After"]) >= 1
        worker.released.set()
        assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]


@in_loop
async def test_a_worker_over_its_limit_is_429() -> None:
    worker = FakeWorker(hold_after=0, max_running=1)
    async with running(worker, max_queue=0) as cluster:
        waiting = asyncio.create_task(cluster.complete())
        await until(lambda: worker.running == 1, "the request runs")
        status, answer = await cluster.complete()
        assert status == 429
        assert "1 full" in answer["error"]["message"]
        worker.released.set()
        assert (await waiting)[0] == 200


@in_loop
async def test_a_ttft_objective_that_nobody_meets_refuses_early() -> None:
    async with running(FakeWorker(), ttft_slo=0.05) as cluster:
        status, answer = await cluster.complete("a" * 400)
        assert status == 429
        assert "the limit is 0.05 s" in answer["error"]["message"]
        assert (await cluster.complete("a"))[0] == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/cluster"])
@in_loop
async def test_api_keys_are_required_only_when_configured(path: str) -> None:
    async with running(FakeWorker()) as cluster:
        headers = {"Authorization": "Bearer whatever"}
        async with cluster.http.get(f"{cluster.url}{path}", headers=headers) as response:
            assert response.status == 200
    async with running(FakeWorker(), api_keys=["key-one-abc"], wait=False) as cluster:
        for header, expected in [
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer key-one-abc"}, 200),
        ]:
            async with cluster.http.get(f"{cluster.url}{path}", headers=header) as response:
                assert response.status == expected
                if expected == 401:
                    error = json.loads(await response.text())["error"]
                    assert error["type"] == "authentication_error"
