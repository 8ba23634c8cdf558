"""A worker without a store: its HTTP interface, its start and its end."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.membership import WorkerRecord, open_membership

from ..waiting import within
from .worker_process import BLOCK, WorkerProcess, is_idle

PROMPT = "The tide came in over the flats, and "


@pytest.fixture(scope="module")
def worker(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("worker"), tiny_model_dir) as worker:
        yield worker
        status, said = worker.stop()
    assert status == 0, said


def test_a_completion_has_text_tokens_usage_and_evidence(worker: WorkerProcess) -> None:
    worker.request("POST", "/v1/cache/clear")
    answer = worker.complete(PROMPT)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 6
    assert answer["model"] == "tiny-llama"
    assert answer["usage"] == {
        "prompt_tokens": len(PROMPT),
        "completion_tokens": 6,
        "total_tokens": len(PROMPT) + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    again = worker.complete(PROMPT)
    assert again["choices"] == answer["choices"]
    cached = (len(PROMPT) - 1) // 8 * 8
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
    assert again["moontide"]["cached_by_tier"] == {"hbm": cached, "dram": 0, "nvme": 0}


def test_token_ids_and_text_are_the_same_prompt(worker: WorkerProcess) -> None:
    document = worker.get("/v1/tokenizer").body
    from tokenizers import Tokenizer

    ids = Tokenizer.from_str(document["tokenizer"]).encode(PROMPT).ids
    assert worker.complete(ids)["choices"] == worker.complete(PROMPT)["choices"]


def test_a_stream_is_the_same_answer_in_pieces(worker: WorkerProcess) -> None:
    whole = worker.complete(PROMPT, 20)
    chunks = list(worker.stream(PROMPT, 20, return_token_ids=True))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    tokens = [token for choice in choices for token in choice["token_ids"]]
    assert tokens == whole["choices"][0]["token_ids"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_stop_strings_and_seeds(worker: WorkerProcess) -> None:
    free = worker.complete(PROMPT, 24)["choices"][0]
    stop = free["text"][6:8]
    stopped = worker.complete(PROMPT, 24, stop=[stop])["choices"][0]
    assert stopped["text"] == free["text"][: free["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"
    seeded = [worker.complete(PROMPT, 12, temperature=1.0, seed=s)["choices"] for s in (5, 5, 6)]
    assert seeded[0] == seeded[1] != seeded[2]


@pytest.mark.parametrize(
    ("body", "status", "parts"),
    [
        ({"prompt": [1] * 600}, 400, ["600", "512"]),
        ({"prompt": [1, 300]}, 400, ["300", "257"]),
        ({"prompt": []}, 400, ["0 tokens"]),
        ({"prompt": "x", "max_tokens": 0}, 400, ["max_tokens", "1"]),
        ({"prompt": "x", "temperature": 3}, 400, ["temperature", "2"]),
        ({"prompt": "x", "top_p": 0}, 400, ["top_p", "0"]),
        ({"prompt": "x", "n": 2}, 400, ["n", "1"]),
        ({"prompt": "x", "model": "other"}, 404, ["other", "tiny-llama"]),
        ({"max_tokens": 1}, 400, ["prompt"]),
        (b"{not json", 400, ["JSON"]),
        (b'{"prompt": "' + b"x" * (17 << 20) + b'"}', 413, ["16777216"]),
    ],
)
def test_wrong_input_is_refused_by_name(
    worker: WorkerProcess, body: object, status: int, parts: list[str]
) -> None:
    reply = worker.request("POST", "/v1/completions", body)
    assert reply.status == status
    assert all(part in reply.body["error"]["message"] for part in parts), reply.body
    assert reply.body["error"]["retryable"] is False


def test_r60_every_route_that_does_something_wants_the_token(worker: WorkerProcess) -> None:
    paths = worker.request("GET", "/openapi.json", headers={}).body["paths"]
    for path, methods in paths.items():
        for method in methods:
            place = path.replace("{handoff_id}", "0" * 32)
            status = worker.request(method.upper(), place, headers={}).status
            is_open = path in ("/healthz", "/readyz", "/metrics", "/openapi.json")
            assert status == (200 if is_open else 401), path


def test_hanging_up_aborts(worker: WorkerProcess) -> None:
    before = worker.stats()["aborted"]
    stream = worker.stream([7] * 20, 400)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator
    worker.wait_for(lambda stats: stats["aborted"] == before + 1 and is_idle(stats))


def test_metrics_have_units_and_count(worker: WorkerProcess) -> None:
    text = worker.get("/metrics").body
    assert "moontide_worker_ttft_seconds_bucket" in text
    assert "moontide_worker_output_tokens_total" in text
    assert 'moontide_worker_requests_total{result="aborted"}' in text


def test_it_registers_and_leaves_within_ten_seconds(tmp_path: Path, tiny_model_dir: Path) -> None:
    with WorkerProcess(tmp_path, tiny_model_dir, flags={"hbm": "384KiB"}) as worker:
        membership = open_membership(f"file:{tmp_path / 'cluster'}")
        (member,) = membership.members()
        assert isinstance(member.record, WorkerRecord)
        document = worker.get("/v1/tokenizer").body
        assert member.record.url == f"http://127.0.0.1:{worker.port}"
        assert member.record.namespace == document["namespace"]
        # 48 pages hold less than the model's context of 512: that is what a request can have.
        assert member.record.context_tokens == document["context_tokens"] == 48 * BLOCK + 1
        stream = worker.stream([7] * 20, 480)
        next(stream)
        with within(10.0):
            status, said = worker.stop()
        assert status == 0, said
        assert membership.members() == []


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"model": "/nowhere/model.gguf"}, ["/nowhere/model.gguf"]),
        ({"model": "timed:steps.json"}, ["timed:steps.json", "not supported"]),
        ({"role": "prefill"}, ["prefill", "both"]),
        ({"hbm": "900TiB"}, ["900TiB", "available"]),
        ({"hbm": "4KiB"}, ["4KiB", "at least"]),
        ({"device": "cuda:99"}, ["cuda:99"]),
        ({"kv-dtype": "int3"}, ["int3", "float16"]),
        ({"store": "http://x"}, ["http://x", "unix:"]),
        ({"cluster": "zookeeper"}, ["zookeeper"]),
    ],
)
def test_r76_a_start_that_cannot_work_ends_in_one_line(
    tmp_path: Path, tiny_model_dir: Path, flags: dict[str, str], parts: list[str]
) -> None:
    status, said = WorkerProcess(tmp_path, tiny_model_dir, flags=flags).run_to_end()
    assert status != 0
    assert len(said.strip().splitlines()) == 1, said
    assert all(part in said for part in parts), said


def test_a_taken_port_is_named(tmp_path: Path, tiny_model_dir: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port: Any = holder.getsockname()[1]
        status, said = WorkerProcess(tmp_path, tiny_model_dir, port=port).run_to_end()
    assert status != 0
    assert len(said.strip().splitlines()) == 1
    assert str(port) in said


def test_a_dead_engine_ends_the_process_and_says_why(tmp_path: Path, tiny_model_dir: Path) -> None:
    with WorkerProcess(tmp_path, tiny_model_dir, launcher=BREAKING_LAUNCHER) as worker:
        reply = worker.request("POST", "/v1/completions", {"prompt": "x"})
        assert reply.status == 503
        assert reply.body["error"]["retryable"] is True
        status, said = worker.wait()
        assert status == 1
        assert said.strip().splitlines()[-1].startswith("moontide worker: the engine failed")


BREAKING_LAUNCHER = [
    sys.executable,
    "-c",
    "from moontide.engine_adapters.builtin.model import Decoder\n"
    "from moontide.kvstore.cli import main\n"
    "def forward(*_): raise RuntimeError('no such kernel')\n"
    "Decoder.forward = forward\n"
    "main()",
]
"""The real worker over a decoder that fails."""
