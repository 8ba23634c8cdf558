"""The demo's HTTP client: a plain one, so that what it measures is what any client sees."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from ..errors import Refused, Unreachable
from .prompts import Message

_TIMEOUT_SECONDS = 60.0
_MAX_ERROR_BYTES = 4096
_WORKER_HEADER = "X-Moontide-Worker"
T = TypeVar("T")


class Evidence(msgspec.Struct, frozen=True):
    """What the worker says of one request: where its cached KV came from, and when."""

    cached_by_tier: dict[str, int] = {}
    bytes_by_tier: dict[str, int] = {}
    bytes_by_transport: dict[str, int] = {}
    first_layer_at: float | None = None
    last_layer_at: float | None = None
    prefill_end_at: float | None = None
    recomputed: bool = False


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None
    moontide: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, and what a client saw of it. Times are seconds from before the connection was
    opened."""

    text: str
    worker: str  # as the Conductor tells
    ttft_seconds: float
    tokens_per_second: float  # after the first token
    usage: Usage
    evidence: Evidence


def chat(
    url: str, model: str, messages: list[Message], *, max_tokens: int, worker: str | None = None
) -> Reply:
    """Ask for a greedy, streamed answer, of `worker` or of whom the Conductor chooses. Raises
    Refused, with the service's own words, and Unreachable."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    texts: list[str] = []
    first: float | None = None
    usage: Usage | None = None
    evidence = Evidence()
    headers = {} if worker is None else {_WORKER_HEADER: worker}
    with _Exchange(url, "POST", "/v1/chat/completions", body, headers) as exchange:
        for data in exchange.events():
            chunk = msgspec.json.decode(data, type=_Chunk)
            content = "".join(choice.delta.content or "" for choice in chunk.choices)
            if content and first is None:
                first = time.perf_counter()
            texts.append(content)
            usage = chunk.usage or usage
            evidence = chunk.moontide or evidence
    ended = time.perf_counter()
    if usage is None or first is None:
        raise Unreachable(f"{url} ended its stream without an answer or without usage")
    rate = (usage.completion_tokens - 1) / max(ended - first, 1e-9)
    served_by = exchange.header(_WORKER_HEADER)
    return Reply("".join(texts), served_by, first - started, rate, usage, evidence)


def call(
    url: str,
    method: str,
    path: str,
    kind: type[T],
    *,
    token: str | None = None,
    fields: Mapping[str, object] | None = None,
) -> T:
    """One JSON request, with these `fields` if it is a POST; the answer decoded. Raises Refused,
    Unreachable."""
    body: dict[str, object] | None = dict(fields or {}) if method == "POST" else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with _Exchange(url, method, path, body, headers) as exchange:
        return msgspec.json.decode(exchange.read(), type=kind)


class _Exchange:
    """One request on a connection of its own."""

    def __init__(
        self,
        url: str,
        method: str,
        path: str,
        body: dict[str, object] | None,
        headers: dict[str, str],
    ) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        self._name = f"{method} {url}{path}"
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port, timeout=_TIMEOUT_SECONDS
        )
        try:
            payload = None if body is None else msgspec.json.encode(body)
            self._connection.request(method, path, payload, headers)
            self._response = self._connection.getresponse()
            if self._response.status != 200:
                answer = self._response.read(_MAX_ERROR_BYTES).decode("utf-8", "replace")
                self._connection.close()
                raise Refused(f"{self._name} answered {self._response.status}: {answer}")
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unreachable(f"{self._name}: {error}") from error

    def __enter__(self) -> _Exchange:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    def read(self) -> bytes:
        return self._response.read()

    def events(self) -> Iterator[bytes]:
        """The data of each server-sent event until `[DONE]`."""
        try:
            for line in self._response:
                if line.startswith(b"data: "):
                    data = line[len(b"data: ") :].strip()
                    if data == b"[DONE]":
                        return
                    yield data
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._name}: the stream broke: {error}") from error
        raise Unreachable(f"{self._name}: the stream ended without [DONE]")
