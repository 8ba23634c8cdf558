"""A request split over a prefill and a decode worker, when all goes well."""

from __future__ import annotations

import asyncio
import json

import pytest

from ..waiting import until
from .fake_model import BLOCK_TOKENS, MODEL, keys_of, tokenizer
from .fake_worker import FakeWorker
from .fakes import (
    FakeStore,
    decode_worker,
    in_loop,
    metric,
    nothing_left,
    prefill_worker,
    running,
    two_nodes,
)

PROMPT = "a prompt of more than three blocks, so that there is something to hit!"
BODY = {"model": MODEL, "prompt": PROMPT}
USAGE = {"stream_options": {"include_usage": True}}


@in_loop
async def test_a_split_answer_is_the_answer_of_one_worker() -> None:
    p, d = prefill_worker(), decode_worker()
    async with two_nodes(p, d) as cluster:
        status, answer, headers = await cluster.post("/v1/completions", BODY)
        assert (status, answer["choices"][0]["text"]) == (200, "Hello!")
        assert answer["usage"]["completion_tokens"] == 3
        assert headers["X-Moontide-Worker"] == "d"
        assert headers["X-Moontide-Prefill-Worker"] == "p"
        assert headers["X-Moontide-Attempts"] == "1"
        events = await cluster.stream("/v1/completions", BODY | USAGE)
        chunks = [json.loads(event) for event in events[:-1]]
        assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["Hel", "lo", "!"]
        reasons = [c["choices"][0]["finish_reason"] for c in chunks[:-1]]
        assert reasons == [None, None, "stop"]
        assert all("token_ids" not in c["choices"][0] for c in chunks[:-1])
        await nothing_left(cluster, p, d)
        assert await metric(cluster, 'plans_total{plan="split"}') == 2


@in_loop
async def test_each_side_is_told_its_part() -> None:
    p, d = prefill_worker(), decode_worker()
    async with two_nodes(p, d) as cluster:
        await cluster.complete(PROMPT, max_tokens=8, temperature=0.5)
        await cluster.complete(PROMPT, max_tokens=8)
    asked, reserved = p.requests[0], d.requests[0]
    handoff_id = asked["kv_transfer_params"]["handoff_id"]
    assert asked["kv_transfer_params"] == {"do_remote_decode": True, "handoff_id": handoff_id}
    assert reserved["kv_transfer_params"] == {
        "do_remote_prefill": True,
        "handoff_id": handoff_id,
        "store_instance": p.store_instance,
    }
    assert (asked["max_tokens"], reserved["max_tokens"]) == (1, 8)
    alike = ("prompt", "seed", "temperature", "model")
    assert [asked[name] for name in alike] == [reserved[name] for name in alike]
    assert d.told == [0, 0]
    assert p.requests[1]["kv_transfer_params"]["handoff_id"] != handoff_id


@in_loop
async def test_the_prefill_worker_is_asked_only_once_pages_are_reserved() -> None:
    p, d = prefill_worker(), decode_worker(holds_when_queued=True)
    async with two_nodes(p, d) as cluster:
        waiting = asyncio.create_task(cluster.complete(PROMPT))
        await until(lambda: d.queued == 1, "the decode worker has it in its queue")
        assert (await cluster.worker("p"))["pending_tokens"] == len(PROMPT)  # it will get it
        assert p.requests == []
        d.admitted.set()
        assert (await waiting)[0] == 200
        assert len(p.requests) == 1


@in_loop
async def test_token_one_is_given_before_the_decode_worker_has_done_anything() -> None:
    p, d = prefill_worker(), decode_worker(hold_after=1)
    async with two_nodes(p, d) as cluster:
        url = f"{cluster.url}/v1/completions"
        async with cluster.http.post(url, json=BODY | {"stream": True}) as response:
            begun = await response.content.readuntil(b"Hel")
            assert b"lo" not in begun
            d.released.set()
            assert "[DONE]" in await response.text()


@in_loop
async def test_r42_cached_tokens_and_evidence_are_those_of_the_whole_handoff() -> None:
    store = FakeStore("node-1")
    store.publish(keys_of(tokenizer().encode(PROMPT).ids)[:3])
    p = prefill_worker(cached_tokens=2 * BLOCK_TOKENS)
    d = decode_worker()
    async with running(store, FakeStore("node-2"), p, d) as cluster:

        async def predicted() -> bool:
            _, told, _ = await cluster.post("/v1/route", BODY)
            return bool(told["cached_tokens"] == 3 * BLOCK_TOKENS)

        await until(predicted, "the prefix is known")
        status, answer, headers = await cluster.post("/v1/completions", BODY)
        assert status == 200
        assert headers["X-Moontide-Predicted-Cached-Tokens"] == str(3 * BLOCK_TOKENS)
        assert headers["X-Moontide-Cached-Tokens"] == str(2 * BLOCK_TOKENS)
        details = answer["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == 2 * BLOCK_TOKENS
        assert answer["moontide"] == {
            "cached_by_tier": {"hbm": 0, "dram": len(PROMPT)},  # what D fetched
            "prefill_end_at": 7.5,  # and when P was done
            "prefill_worker": "p",
            "decode_worker": "d",
        }
        assert await metric(cluster, "predicted_cached_tokens_total") == 3 * BLOCK_TOKENS
        assert await metric(cluster, "cached_tokens_total") == 2 * BLOCK_TOKENS
        assert await metric(cluster, "prediction_error_tokens_sum") == BLOCK_TOKENS
        await nothing_left(cluster, p, d)


@in_loop
async def test_what_only_another_node_holds_counts_as_cached_remotely() -> None:
    store = FakeStore("node-2")
    store.publish(keys_of(tokenizer().encode(PROMPT).ids)[:3], tier="nvme")
    async with running(store, FakeStore("node-1"), prefill_worker(), decode_worker()) as cluster:

        async def predicted() -> bool:
            _, told, _ = await cluster.post("/v1/route", BODY)
            return bool(told["cached_tokens"])

        await until(predicted, "the prefix is known")
        _, told, _ = await cluster.post("/v1/route", BODY)
    assert (told["prefill_worker"], told["worker"], told["reason"]) == ("p", "d", "only")
    [estimate] = told["estimates"]
    assert estimate["prefill_worker"] == "p"
    assert estimate["cached_by_tier"] == {"remote": 3 * BLOCK_TOKENS}
    assert estimate["handoff_seconds"] > 0


@in_loop
async def test_an_answer_that_ends_with_token_one_ends_the_decode_side_too() -> None:
    p, d = prefill_worker(words=["Yes"]), decode_worker(words=["Yes"])
    async with two_nodes(p, d) as cluster:
        status, answer = await cluster.complete(PROMPT)
        assert (status, answer["choices"][0]) == (
            200,
            {"text": "Yes", "finish_reason": "stop", "index": 0, "logprobs": None},
        )
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["moontide"]["prefill_worker"] == "p"
        await nothing_left(cluster, p, d)
        assert d.told == []


@in_loop
async def test_an_answer_of_one_token_is_not_split() -> None:
    p, d = prefill_worker(), decode_worker()
    async with two_nodes(p, d) as cluster:
        _, answer, headers = await cluster.post("/v1/completions", BODY | {"max_tokens": 1})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert headers["X-Moontide-Worker"] == "p"
        assert "X-Moontide-Prefill-Worker" not in headers
        assert d.requests == []


@pytest.mark.parametrize("lost", ["p", "d"])
@in_loop
async def test_without_one_role_the_other_answers_alone(lost: str) -> None:
    p, d = prefill_worker(), decode_worker()
    async with two_nodes(p, d) as cluster:
        (p if lost == "p" else d).ready = False

        async def known() -> bool:
            return not (await cluster.worker(lost))["usable"]

        await until(known, "it takes nothing any more")
        status, answer, headers = await cluster.post("/v1/completions", BODY)
        assert (status, answer["choices"][0]["text"]) == (200, "Hello!")
        assert headers["X-Moontide-Reason"] == "fallback"
        assert headers["X-Moontide-Worker"] == ("d" if lost == "p" else "p")
        assert (p if lost == "p" else d).requests == []
        async with cluster.http.get(f"{cluster.url}/readyz") as response:
            assert response.status == 200


@in_loop
async def test_a_named_worker_answers_alone() -> None:
    workers = prefill_worker(), decode_worker(), FakeWorker("b")
    async with two_nodes(*workers) as cluster:
        url = f"{cluster.url}/v1/completions"
        for worker in workers:
            named = {"X-Moontide-Worker": worker.name}
            async with cluster.http.post(url, json=BODY, headers=named) as response:
                assert response.status == 200
                assert response.headers["X-Moontide-Worker"] == worker.name
                assert response.headers["X-Moontide-Reason"] == "forced"
            assert "kv_transfer_params" not in worker.requests[-1]
        for path in ("/v1/completions", "/v1/route"):
            named = {"X-Moontide-Worker": "nobody"}
            async with cluster.http.post(cluster.url + path, json=BODY, headers=named) as response:
                assert response.status == 400
                message = (await response.json())["error"]["message"]
                assert "'nobody'" in message
                assert "b, d, p" in message


@in_loop
async def test_r23_a_burst_of_eight_times_the_decode_window_all_ends_well() -> None:
    p, d = prefill_worker(), decode_worker(window=2)
    async with two_nodes(p, d, first_token_timeout=0.5, token_timeout=30) as cluster:
        d.hold_after = 2
        waiting = [asyncio.create_task(cluster.complete(PROMPT)) for _ in range(16)]
        await until(lambda: d.reserved == 2 and d.queued == 14, "two run, the others queue")
        await asyncio.sleep(1.6)  # longer than the timeout: signs of life are progress
        assert not any(task.done() for task in waiting)
        d.hold_after = None
        d.released.set()
        answers = await asyncio.gather(*waiting)
        assert [status for status, _ in answers] == [200] * 16
        await nothing_left(cluster, p, d)


@in_loop
async def test_r34_open_requests_are_counted_at_both_ends() -> None:
    p, d = prefill_worker(hold_after=0), decode_worker(hold_after=1)
    async with two_nodes(p, d) as cluster:
        waiting = asyncio.create_task(cluster.complete(PROMPT))
        await until(lambda: p.running == 1, "the prefill worker computes")
        assert (await cluster.worker("p"))["open_requests"] == 1
        assert (await cluster.worker("p"))["pending_tokens"] == len(PROMPT)
        assert (await cluster.worker("d"))["open_requests"] == 1
        assert (await cluster.worker("d"))["pending_tokens"] == 0
        p.released.set()
        await until(lambda: p.running == 0 and d.told == [0], "the decode worker has it")
        before = d.checks
        await until(lambda: d.checks >= before + 2, "checks go on")
        assert (await cluster.worker("p"))["open_requests"] == 0
        assert (await cluster.worker("d"))["open_requests"] == 1
        d.released.set()
        assert (await waiting)[0] == 200
        await nothing_left(cluster, p, d)


@in_loop
async def test_a_prompt_over_anybodys_context_is_refused_with_both_numbers() -> None:
    p, d = prefill_worker(context_tokens=64), decode_worker()
    async with two_nodes(p, d) as cluster:
        status, answer = await cluster.complete(PROMPT)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert f"{len(PROMPT)} tokens" in answer["error"]["message"]
        assert "context of 64" in answer["error"]["message"]
        assert (await cluster.complete("short"))[0] == 200
