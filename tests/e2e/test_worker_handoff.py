"""A prefill and a decode worker over HTTP, each with a store, as the Conductor uses them."""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.membership import WorkerRecord, open_membership

from ..store_process import StartStore, StoreProcess, start_nodes
from .test_worker_store import prompt
from .worker_process import BLOCK, WorkerProcess, is_idle

NUM_TOKENS = 12
BLOCK_BYTES = 4 * BLOCK * 2 * 2 * 16 * 4  # all layers


@dataclass
class Pair:
    prefill: WorkerProcess
    decode: WorkerProcess
    source: StoreProcess

    def receive(self, token_ids: list[int], handoff_id: str, **fields: Any) -> Iterator[Any]:
        params = {
            "do_remote_prefill": True,
            "handoff_id": handoff_id,
            "store_instance": self.source.instance,
        }
        return self.decode.stream(
            token_ids, NUM_TOKENS, kv_transfer_params=params, return_token_ids=True, **fields
        )

    def compute(self, token_ids: list[int], handoff_id: str, **fields: Any) -> list[Any]:
        params = {"do_remote_decode": True, "handoff_id": handoff_id}
        return list(self.prefill.stream(token_ids, NUM_TOKENS, kv_transfer_params=params, **fields))

    def tell(self, handoff_id: str, token_id: int) -> int:
        path = f"/v1/handoffs/{handoff_id}/first_token"
        return self.decode.request("POST", path, {"token_id": token_id}).status

    def settle(self) -> None:
        self.prefill.wait_for(is_idle)
        self.decode.wait_for(is_idle)


@pytest.fixture(scope="module")
def pair(
    module_store_daemon: StartStore,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model_dir: Path,
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    stores = start_nodes(module_store_daemon, folder, 2, "--dram", "32MiB", "--segment", "4MiB")
    with contextlib.ExitStack() as stack:
        workers = []
        for role, store in zip(("prefill", "decode"), stores, strict=True):
            place = folder / role
            place.mkdir()
            flags = {"id": role, "role": role, "max-running": "2", "max-waiting": "2"}
            flags |= {"cluster": f"file:{folder / 'cluster'}", "handoff-seconds": "2"}
            address = f"unix:{store.socket}"
            worker = WorkerProcess(place, tiny_model_dir, store=address, flags=flags)
            workers.append(stack.enter_context(worker))
        yield Pair(workers[0], workers[1], stores[0])
        for worker in workers:
            status, said = worker.stop()
            assert status == 0, said
            assert "Traceback" not in said


def new_id() -> str:
    return secrets.token_hex(16)


def tokens_of(chunks: list[Any]) -> list[int]:
    return [t for chunk in chunks for choice in chunk["choices"] for t in choice["token_ids"]]


def text_of(chunks: list[Any]) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("resumed", [0, 5])
def test_r06_a_handoff_gives_the_answer_of_one_worker(pair: Pair, resumed: int) -> None:
    token_ids = prompt(43, 1 + resumed)
    whole = pair.prefill.complete(token_ids, NUM_TOKENS)["choices"][0]
    known = token_ids + whole["token_ids"][:resumed]
    pair.settle()
    pair.prefill.request("POST", "/v1/cache/clear")
    handoff_id = new_id()
    receiving = pair.receive(known, handoff_id, resume_tokens=resumed)
    reserved = next(receiving)
    assert (reserved["choices"], reserved["kv_transfer_params"]) == ([], {"state": "reserved"})
    first = pair.compute(known, handoff_id, resume_tokens=resumed)
    assert len(first) == 2
    assert first[1]["kv_transfer_params"] == {
        "handoff_id": handoff_id,
        "store_instance": pair.source.instance,
    }
    (token_id,) = tokens_of(first)
    assert pair.tell(handoff_id, token_id) == 200
    rest = list(receiving)
    assert whole["token_ids"] == [*whole["token_ids"][:resumed], token_id, *tokens_of(rest)]
    shown = text_of(first) + text_of(rest)
    assert whole["text"].endswith(shown)
    assert resumed or whole["text"] == shown
    assert [c["choices"][0]["finish_reason"] for c in first[:1]] == ["length"]
    usage = rest[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (43, NUM_TOKENS)
    assert first[-1]["usage"]["completion_tokens"] == resumed + 1
    evidence = rest[-1]["moontide"]
    num_bytes = -(-len(known) // BLOCK) * BLOCK_BYTES
    assert evidence["bytes_by_transport"] == {"shm": 0, "tcp": num_bytes, "file": 0}
    assert evidence["bytes_by_tier"] == {"dram": num_bytes, "nvme": 0}
    assert evidence["cached_by_tier"] == {"hbm": 0, "dram": len(known), "nvme": 0}
    assert evidence["first_layer_at"] <= evidence["last_layer_at"]
    assert not evidence["recomputed"]
    pair.decode.wait_for(lambda stats: pair.tell(handoff_id, token_id) == 404)  # it has ended
    pair.settle()


def test_token_1_is_taken_once(pair: Pair) -> None:
    handoff_id, token_ids = new_id(), prompt(30, 2)
    assert pair.tell(handoff_id, 1) == 404
    receiving = pair.receive(token_ids, handoff_id, ignore_eos=True)
    next(receiving)
    (token_id,) = tokens_of(pair.compute(token_ids, handoff_id))
    assert pair.tell(handoff_id, 258) == 400
    statuses = [pair.tell(handoff_id, token_id) for _ in range(2)]
    statuses.append(pair.tell(handoff_id, token_id + 1 if token_id < 200 else 0))
    assert statuses in ([200, 200, 409], [200, 200, 404], [200, 404, 404])  # or it has ended
    assert len(tokens_of(list(receiving))) == NUM_TOKENS - 1
    pair.settle()


def test_an_id_in_use_is_refused(pair: Pair) -> None:
    handoff_id = new_id()
    receiving = pair.receive(prompt(30, 3), handoff_id)
    next(receiving)
    params = {
        "do_remote_prefill": True,
        "handoff_id": handoff_id,
        "store_instance": pair.source.instance,
    }
    body = {"prompt": [1, 2], "stream": True, "kv_transfer_params": params}
    assert pair.decode.request("POST", "/v1/completions", body).status == 409
    receiving.close()  # type: ignore[attr-defined]  # a generator
    pair.settle()


def test_r17_hanging_up_frees_a_handoff_in_any_state(pair: Pair) -> None:
    for state in ("reserved", "computed", "with token 1"):
        handoff_id, token_ids = new_id(), prompt(60, 4)
        receiving = pair.receive(token_ids, handoff_id)
        next(receiving)
        if state != "reserved":
            (token_id,) = tokens_of(pair.compute(token_ids, handoff_id))
            if state == "with token 1":
                assert pair.tell(handoff_id, token_id) == 200
        receiving.close()  # type: ignore[attr-defined]  # a generator
        pair.settle()


def test_r23_queued_handoffs_wait_and_reserved_ones_have_a_deadline(pair: Pair) -> None:
    """Two are reserved and their token 1 never comes; the third queues longer than that."""
    streams = [pair.receive(prompt(30, 5), new_id()) for _ in range(3)]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as threads:
        for stream in streams:
            stack.callback(stream.close)  # type: ignore[attr-defined]  # a generator
        for stream in streams[:2]:
            next(stream)
        queued = threads.submit(next, streams[2])
        pair.decode.wait_for(lambda stats: stats["waiting"] == 1)
        ends = [list(stream) for stream in streams[:2]]
        assert all("within 2 s" in end[-1]["error"]["message"] for end in ends), ends
        assert queued.result(5)["kv_transfer_params"] == {"state": "reserved"}
    pair.settle()


def test_r55_a_full_queue_refuses_a_handoff_at_once(pair: Pair) -> None:
    streams = [pair.receive(prompt(30, 6), new_id()) for _ in range(4)]
    with ThreadPoolExecutor() as threads:
        for stream in streams[:2]:
            next(stream)
        queued = [threads.submit(next, stream) for stream in streams[2:]]
        pair.decode.wait_for(lambda stats: stats["waiting"] == 2)
        params = {**GOOD, "do_remote_prefill": True}
        body = {"prompt": [1], "stream": True, "kv_transfer_params": params}
        reply = pair.decode.request("POST", "/v1/completions", body)
        assert (reply.status, reply.body["error"]["retryable"]) == (503, True)
        for stream in streams[:2]:
            stream.close()  # type: ignore[attr-defined]  # a generator
        for each in queued:
            assert each.result(5)["kv_transfer_params"] == {"state": "reserved"}
    for stream in streams[2:]:
        stream.close()  # type: ignore[attr-defined]  # a generator
    pair.settle()


GOOD = {"handoff_id": "0" * 32, "store_instance": "node-a/1/" + "00" * 16}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"kv_transfer_params": GOOD}, ["do_remote_decode", "exactly one"]),
        (
            {"kv_transfer_params": {**GOOD, "do_remote_decode": True, "do_remote_prefill": True}},
            ["exactly one"],
        ),
        ({"kv_transfer_params": {"do_remote_decode": True}}, ["handoff_id"]),
        (
            {"kv_transfer_params": {**GOOD, "do_remote_decode": True, "handoff_id": "0" * 31}},
            ["handoff_id"],
        ),
        (
            {"kv_transfer_params": {**GOOD, "do_remote_prefill": True}, "stream": False},
            ["stream=true"],
        ),
        (
            {"kv_transfer_params": {**GOOD, "do_remote_prefill": True, "store_instance": "x"}},
            ["store_instance", "'x'"],
        ),
        ({"prompt": "text", "resume_tokens": 2}, ["resume_tokens is 2", "text"]),
        ({"prompt": [1, 2], "resume_tokens": 2}, ["resume_tokens is 2", "has 2 tokens"]),
        ({"prompt": [1, 2], "resume_tokens": -1}, ["resume_tokens"]),
    ],
)
def test_wrong_handoffs_are_refused_by_name(
    pair: Pair, fields: dict[str, Any], parts: list[str]
) -> None:
    body = {"prompt": [1, 2, 3], "stream": True, **fields}
    reply = pair.decode.request("POST", "/v1/completions", body)
    assert reply.status == 400, reply
    assert all(part in reply.body["error"]["message"] for part in parts), reply.body


@pytest.mark.parametrize("side", ["do_remote_decode", "do_remote_prefill"])
def test_a_prompt_beyond_this_workers_room_is_refused_with_both_numbers(
    pair: Pair, side: str
) -> None:
    worker = pair.prefill if side == "do_remote_decode" else pair.decode
    body = {"prompt": [1] * 600, "stream": True, "kv_transfer_params": {**GOOD, side: True}}
    reply = worker.request("POST", "/v1/completions", body)
    assert reply.status == 400
    assert all(part in reply.body["error"]["message"] for part in ("600", "512"))


def test_roles_are_told(pair: Pair) -> None:
    assert [pair.prefill.stats()["role"], pair.decode.stats()["role"]] == ["prefill", "decode"]
    membership = open_membership(str(pair.prefill.flags["cluster"]))
    records = [member.record for member in membership.members()]
    roles = {r.id: r.role for r in records if isinstance(r, WorkerRecord)}
    assert roles == {"prefill": "prefill", "decode": "decode"}


def test_a_prefill_worker_that_stops_costs_its_handoffs_their_deadline(pair: Pair) -> None:
    """What it holds at the decode worker is free again, and it goes on when it is back."""
    receiving = pair.receive(prompt(60, 8), new_id())
    next(receiving)
    assert pair.prefill.process is not None
    pair.prefill.process.send_signal(signal.SIGSTOP)
    try:
        end = list(receiving)
        assert "within 2 s" in end[-1]["error"]["message"]
        pair.decode.wait_for(is_idle)
        assert len(pair.decode.complete(prompt(20, 9))["choices"][0]["token_ids"]) == 6
    finally:
        pair.prefill.process.send_signal(signal.SIGCONT)
    pair.prefill.complete(prompt(20, 9))
