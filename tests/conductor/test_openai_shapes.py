"""Answers in OpenAI's shapes, plain and streamed, also as the official client sees them."""

from __future__ import annotations

import asyncio
import json

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from .fake_model import MODEL, tokenizer
from .fake_worker import FakeWorker
from .fakes import Cluster, in_loop, running

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
CHAT_PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@in_loop
async def test_a_completion_has_openais_shape() -> None:
    worker = FakeWorker(cached_tokens=1)
    async with running(worker) as cluster:
        status, answer, headers = await cluster.post(
            "/v1/completions", {"model": MODEL, "prompt": "hey", "max_tokens": 8, "seed": 7}
        )
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == MODEL
    assert isinstance(answer["created"], int)
    assert answer["choices"] == [
        {"text": "Hello!", "finish_reason": "stop", "index": 0, "logprobs": None}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert answer["moontide"] == {"cached_by_tier": {"hbm": 0, "dram": 1}}
    assert headers["X-Moontide-Worker"] == "w0"
    assert worker.requests[0]["prompt"] == tokenizer().encode("hey").ids
    assert worker.requests[0]["seed"] == 7


@in_loop
async def test_a_chat_completion_has_openais_shape_and_the_template_is_applied() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        status, answer, _ = await cluster.post("/v1/chat/completions", CHAT)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"] == [
        {
            "message": {"content": "Hello!", "role": "assistant", "refusal": None},
            "finish_reason": "stop",
            "index": 0,
            "logprobs": None,
        }
    ]
    assert worker.requests[0]["prompt"] == tokenizer().encode(CHAT_PROMPT).ids


@in_loop
async def test_a_chat_stream_begins_with_the_role_and_ends_with_done() -> None:
    async with running(FakeWorker()) as cluster:
        events = await cluster.stream(
            "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}
        )
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [d["content"] for d in deltas[1:-1]] == ["Hel", "lo", "!"]
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@in_loop
async def test_a_stream_has_a_usage_only_when_asked() -> None:
    async with running(FakeWorker()) as cluster:
        events = await cluster.stream("/v1/completions", {"model": MODEL, "prompt": "hi"})
    chunks = [json.loads(event) for event in events[:-1]]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hel", "lo", "!"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert all("usage" not in chunk and "moontide" not in chunk for chunk in chunks)


@in_loop
async def test_token_ids_are_given_when_asked_for() -> None:
    async with running(FakeWorker()) as cluster:
        _, plain = await cluster.complete(return_token_ids=True)
        events = await cluster.stream("/v1/chat/completions", CHAT | {"return_token_ids": True})
    assert plain["choices"][0]["token_ids"] == [0, 1, 2]
    given = [json.loads(event)["choices"][0].get("token_ids") for event in events[:-1]]
    assert [ids for ids in given if ids] == [[0], [1], [2]]


@in_loop
async def test_max_tokens_ends_with_length() -> None:
    async with running(FakeWorker()) as cluster:
        _, answer = await cluster.complete(max_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", "ab"),
        (["ab"], "ab"),
        (tokenizer().encode("ab").ids, "ab"),
        ([tokenizer().encode("ab").ids], "ab"),
        ("a<|im_end|>", "a<|im_end|>"),  # special tokens are parsed wherever they stand
    ],
    ids=["text", "list of text", "token ids", "list of token ids", "special tokens"],
)
@in_loop
async def test_every_form_of_prompt_becomes_token_ids(prompt: object, expected: str) -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        status, _ = await cluster.complete(prompt)
    assert status == 200
    assert worker.requests[0]["prompt"] == tokenizer().encode(expected).ids


@in_loop
async def test_sampling_parameters_reach_the_worker_and_neutral_values_are_accepted() -> None:
    worker = FakeWorker()
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 3, "stop": "x", "ignore_eos": True}
    neutral = {"n": 1, "logprobs": None, "echo": False, "frequency_penalty": 0.0, "user": "me"}
    async with running(worker) as cluster:
        status, _ = await cluster.complete(**fields, **neutral)
    assert status == 200
    sent = worker.requests[0]
    assert {name: sent[name] for name in fields} == fields | {"stop": ["x"]}


@in_loop
async def test_chat_asks_for_all_the_room_there_is_when_no_limit_is_given() -> None:
    worker = FakeWorker()
    async with running(worker) as cluster:
        await cluster.post("/v1/chat/completions", CHAT)
        await cluster.post("/v1/chat/completions", CHAT | {"max_completion_tokens": 2})
    num_prompt = len(worker.requests[0]["prompt"])
    assert worker.requests[0]["max_tokens"] == worker.context_tokens - num_prompt
    assert worker.requests[1]["max_tokens"] == 2


@in_loop
async def test_text_parts_are_joined() -> None:
    worker = FakeWorker()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with running(worker) as cluster:
        body = CHAT | {"messages": [{"role": "user", "content": parts}]}
        await cluster.post("/v1/chat/completions", body)
    expected = CHAT_PROMPT.replace("hi", "a\nb")
    assert worker.requests[0]["prompt"] == tokenizer().encode(expected).ids


@in_loop
async def test_the_official_client_works_against_an_open_conductor() -> None:
    async with running(FakeWorker(cached_tokens=16)) as cluster:
        await asyncio.to_thread(_use_official_client, cluster)


def _use_official_client(cluster: Cluster) -> None:
    with OpenAI(base_url=f"{cluster.url}/v1", api_key="anything", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        chat = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0
        )
        assert chat.choices[0].message.content == "Hello!"
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert chat.usage.prompt_tokens_details is not None
        assert chat.usage.prompt_tokens_details.cached_tokens == 16
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, usage = "", None
        for chunk in stream:
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        assert text == "Hello!"
        assert usage is not None
        assert usage.completion_tokens == 3
        completion = client.completions.create(model=MODEL, prompt="hi", max_tokens=2)
        assert completion.choices[0].text == "Hello"
        pieces = client.completions.create(model=MODEL, prompt="hi", stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == "Hello!"
        with pytest.raises(NotFoundError, match="tiny"):
            client.chat.completions.create(
                model="other", messages=[{"role": "user", "content": "hi"}]
            )
        with pytest.raises(BadRequestError) as refused:
            client.completions.create(model=MODEL, prompt="hi", n=2)
        assert refused.value.param == "n"
