"""The picture of the cluster: hits predicted from events, resyncs, silent workers, restarts."""

from __future__ import annotations

import asyncio
from typing import Any

from ..waiting import until
from .fake_model import BLOCK_TOKENS, MODEL, keys_of, tokenizer
from .fake_worker import FakeWorker
from .fakes import Cluster, FakeStore, in_loop, running

PROMPT = "a prompt of more than three blocks, so that there is something to hit!"
TOKEN_IDS = tokenizer().encode(PROMPT).ids
KEYS = keys_of(TOKEN_IDS)


async def route(cluster: Cluster) -> dict[str, Any]:
    status, answer, _ = await cluster.post("/v1/route", {"model": MODEL, "prompt": PROMPT})
    assert status == 200, answer
    return answer


async def predicts(cluster: Cluster, worker: str, cached_tokens: int) -> None:
    async def predicted() -> bool:
        answer = await route(cluster)
        return (answer["worker"], answer["cached_tokens"]) == (worker, cached_tokens)

    await until(predicted, f"{worker} with {cached_tokens} cached tokens")


async def warm(cluster: Cluster) -> None:
    async def is_warm() -> bool:
        return bool((await cluster.status())["index"]["warm"])

    await until(is_warm, "the index is warm")


@in_loop
async def test_r42_predicted_and_actual_cached_tokens_are_told() -> None:
    store = FakeStore()
    worker = FakeWorker("w1", store_instance=store.instance, cached_tokens=2 * BLOCK_TOKENS)
    store.publish(KEYS[:3])
    async with running(store, FakeWorker("w0"), worker) as cluster:
        await predicts(cluster, "w1", 3 * BLOCK_TOKENS)
        status, _, headers = await cluster.post(
            "/v1/completions", {"model": MODEL, "prompt": PROMPT}
        )
        assert status == 200
        assert headers["X-Moontide-Worker"] == "w1"
        assert headers["X-Moontide-Reason"] == "prefix"
        assert headers["X-Moontide-Predicted-Cached-Tokens"] == str(3 * BLOCK_TOKENS)
        assert headers["X-Moontide-Cached-Tokens"] == str(2 * BLOCK_TOKENS)
        async with cluster.http.get(f"{cluster.url}/metrics") as response:
            text = await response.text()
    assert f"moontide_conductor_predicted_cached_tokens_total {3 * BLOCK_TOKENS}.0" in text
    assert f"moontide_conductor_cached_tokens_total {2 * BLOCK_TOKENS}.0" in text
    assert 'moontide_conductor_routed_total{reason="prefix"} 1.0' in text
    assert 'moontide_conductor_requests_total{endpoint="completions",result="ok"} 1.0' in text
    assert "moontide_conductor_index_blocks 3.0" in text


@in_loop
async def test_hbm_blocks_count_for_their_engine_and_dram_for_the_workers_of_the_node() -> None:
    store = FakeStore()
    first = FakeWorker("w0", store_instance=store.instance)
    second = FakeWorker("w1", store_instance=store.instance)
    async with running(store, first, second) as cluster:
        await warm(cluster)
        store.publish(KEYS[:2])
        await predicts(cluster, "w0", 2 * BLOCK_TOKENS)
        store.publish(KEYS[:3], instance=second.instance, tier="hbm")
        await predicts(cluster, "w1", 3 * BLOCK_TOKENS)
        store.publish(KEYS[:3], kind="removed", instance=second.instance, tier="hbm")
        await predicts(cluster, "w0", 2 * BLOCK_TOKENS)
        store.publish(KEYS[:1], kind="removed")
        await predicts(cluster, "w0", 0)


@in_loop
async def test_r37_a_lost_event_is_noticed_and_the_store_is_read_anew() -> None:
    store = FakeStore()
    worker = FakeWorker(store_instance=store.instance)
    async with running(store, worker) as cluster:
        await warm(cluster)
        store.publish(KEYS[:1])
        await predicts(cluster, "w0", BLOCK_TOKENS)
        store.publish(KEYS[1:3], skip=1)
        await until(lambda: store.subscriptions == 2, "a new subscription")
        await predicts(cluster, "w0", 3 * BLOCK_TOKENS)
        found = (await cluster.status())["stores"][0]
        assert (found["resyncs"], found["events"]) == (1, "live")


@in_loop
async def test_an_ended_event_stream_is_taken_up_again() -> None:
    store = FakeStore()
    worker = FakeWorker(store_instance=store.instance)
    store.publish(KEYS[:2])
    async with running(store, worker) as cluster:
        await predicts(cluster, "w0", 2 * BLOCK_TOKENS)
        store.end_streams()
        await until(lambda: store.subscriptions == 2, "a new subscription")
        store.publish(KEYS[2:3])
        await predicts(cluster, "w0", 3 * BLOCK_TOKENS)


@in_loop
async def test_r39_a_worker_without_events_shows_in_status_and_metrics() -> None:
    store = FakeStore()
    told = FakeWorker("told", store_instance=store.instance)
    async with running(store, told, FakeWorker("silent")) as cluster:
        await warm(cluster)
        assert (await cluster.worker("told"))["events"] == "live"
        assert (await cluster.worker("silent"))["events"] == "silent"
        async with cluster.http.get(f"{cluster.url}/metrics") as response:
            assert "moontide_conductor_workers_without_events 1.0" in await response.text()


@in_loop
async def test_r40_a_cold_index_serves_by_load_and_says_so() -> None:
    store = FakeStore()
    url = ""
    async with running(FakeWorker("w0"), FakeWorker("w1")) as cluster:
        await store.start()
        url = store.url
        store.url = "http://127.0.0.1:1"  # registered, but not to be reached
        cluster.join(store)

        async def known() -> bool:
            return bool((await cluster.status())["stores"])

        await until(known, "the store is known")
        assert (await cluster.status())["index"]["warm"] is False
        decision = await route(cluster)
        assert (decision["worker"], decision["reason"]) == ("w0", "load")
        assert (await cluster.complete(PROMPT))[0] == 200
        cluster.leave(store)
        store.url = url
        cluster.join(store)
        await warm(cluster)
    await store.stop()


@in_loop
async def test_r25_a_restarted_worker_is_another_instance() -> None:
    worker = FakeWorker(hold_after=1)
    async with running(worker) as cluster:
        waiting = asyncio.create_task(cluster.complete())
        await until(lambda: worker.running == 1, "the request runs")
        again = FakeWorker("w0")
        again.instance = "node-a/9/" + "99" * 16
        await again.start()
        cluster.leave(worker)
        cluster.join(again)

        async def replaced() -> bool:
            return bool((await cluster.worker("w0")).get("instance") == again.instance)

        await until(replaced, "the new instance is known")
        assert (await cluster.worker("w0"))["open_requests"] == 0
        await cluster.wait_usable("w0")
        assert (await cluster.complete())[0] == 200
        assert len(again.requests) == 1
        worker.released.set()  # the former life finishes what it has
        assert (await waiting)[0] == 200
        await again.stop()


@in_loop
async def test_a_worker_whose_lease_lapsed_goes_on_with_its_open_requests() -> None:
    worker = FakeWorker(hold_after=1)
    async with running(worker) as cluster:
        waiting = asyncio.create_task(cluster.complete())
        await until(lambda: worker.running == 1, "the request runs")
        cluster.leave(worker)

        async def left() -> bool:
            return await cluster.worker("w0") == {}

        await until(left, "the worker is gone")
        before = worker.checks
        await until(lambda: worker.checks > before, "it is still checked")
        cluster.join(worker)
        await cluster.wait_usable("w0")
        assert (await cluster.worker("w0"))["open_requests"] == 1
        worker.released.set()
        assert (await waiting)[0] == 200
        assert (await cluster.worker("w0"))["open_requests"] == 0


@in_loop
async def test_r35_a_draining_worker_takes_nothing_new() -> None:
    worker, other = FakeWorker("w0"), FakeWorker("w1")
    async with running(worker, other) as cluster:
        worker.ready = False

        async def drained() -> bool:
            return not (await cluster.worker("w0"))["usable"]

        await until(drained, "the worker is left out")
        assert (await cluster.worker("w0"))["excluded"] == "not_ready"
        decision = await route(cluster)
        assert decision["excluded"] == {"w0": "not_ready"}
        assert (await cluster.complete())[0] == 200
        assert worker.requests == []


@in_loop
async def test_r41_a_worker_that_contradicts_its_record_is_left_out_with_both_values() -> None:
    liar = FakeWorker("liar", model="liars", told_context_tokens=4096)
    async with running(liar, FakeWorker("good", context_tokens=256), wait=False) as cluster:
        await cluster.wait_usable("good")

        async def refused() -> bool:
            return "4096" in (await cluster.worker("liar")).get("detail", "")

        await until(refused, "the refusal is told")
        told = await cluster.worker("liar")
        assert "512" in told["detail"]
        assert (told["usable"], told["excluded"]) == (False, "mismatch")
        assert (await cluster.complete())[0] == 200


@in_loop
async def test_models_are_those_of_live_workers() -> None:
    workers = FakeWorker("a"), FakeWorker("b", model="other", context_tokens=64)
    async with (
        running(*workers) as cluster,
        cluster.http.get(f"{cluster.url}/v1/models") as response,
    ):
        answer = await response.json()
    assert answer["object"] == "list"
    found = [(model["id"], model["object"], model["max_model_len"]) for model in answer["data"]]
    assert found == [("other", "model", 64), ("tiny", "model", 512)]
