"""Whatever is sent, the answer is one that /openapi.json describes, and never an error of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import requests  # comes with schemathesis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from moontide.conductor.protocol import ChatRequest, CompletionRequest

from .fake_model import MODEL
from .fake_worker import FakeWorker
from .fakes import running

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BOUNDED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A Conductor with one worker, in a loop of its own."""
    addresses: list[str] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with running(FakeWorker()) as cluster:
            addresses.append(cluster.url)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert started.wait(20)
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(20)
        loop.close()


def test_every_operation_answers_as_described(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == 8
    for operation in operations:

        @BOUNDED
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS, timeout=20)

        check()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)
fields = st.sampled_from(
    sorted({*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__})
)


@settings(BOUNDED, max_examples=120)
@given(
    path=st.sampled_from(["completions", "chat/completions", "route"]),
    body=st.dictionaries(fields, json_values, max_size=6),
)
def test_no_json_is_an_error_of_ours(url: str, path: str, body: dict[str, object]) -> None:
    full = {"model": MODEL, "prompt": "x", "messages": [{"role": "user", "content": "y"}]} | body
    answer = requests.post(f"{url}/v1/{path}", json=full, timeout=20)
    assert answer.status_code in (200, 400, 404), answer.text
