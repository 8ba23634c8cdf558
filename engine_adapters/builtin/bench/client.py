"""A plain HTTP client, so that what is measured is what any client sees."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from moontide.kvstore.service import CommandFailed

from ..worker.api import Usage

_DEADLINE_SECONDS = 120.0  # of one answer
_WORKER_HEADER = "X-Moontide-Worker"
T = TypeVar("T")


class _Chunk(msgspec.Struct, frozen=True):
    """The part of a streamed chunk that is needed here."""

    choices: list[msgspec.Raw] = []
    usage: Usage | None = None
    moontide: msgspec.Raw = msgspec.Raw(b"{}")


class Evidence(msgspec.Struct, frozen=True):
    """The part that is needed here; a worker alone names no others."""

    cached_by_tier: dict[str, int] = {}
    bytes_by_transport: dict[str, int] = {}
    prefill_worker: str = ""


@dataclass(frozen=True, slots=True)
class FirstToken:
    seconds: float  # from before the connection was opened
    cached_tokens: int  # of the prompt, as the worker tells
    evidence: Evidence


class Client:
    """Of one worker, or of the Conductor. Whatever is not as agreed raises CommandFailed: there is
    nothing to measure then."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}

    def first_token(
        self, model: str, prompt: list[int], *, max_tokens: int = 1, worker: str = ""
    ) -> FirstToken:
        """Waits for the end, measures the first token. `worker`: whom the Conductor has to ask to
        do all of it."""
        first: float | None = None
        last = _Chunk()
        started = time.perf_counter()
        for chunk in self._stream(model, prompt, max_tokens, worker):
            if chunk.choices and first is None:
                first = time.perf_counter()
            if chunk.usage is not None:
                last = chunk
        if first is None or last.usage is None:
            raise CommandFailed(f"{self._url} streamed no token, or no usage")
        cached = last.usage.prompt_tokens_details.cached_tokens
        evidence = msgspec.json.decode(last.moontide, type=Evidence)
        return FirstToken(first - started, cached, evidence)

    def token_times(
        self, model: str, prompt: list[int], *, max_tokens: int
    ) -> Generator[float, None, None]:
        """`time.perf_counter()` at each chunk with a token, as they come. Closing the iterator
        hangs up."""
        for chunk in self._stream(model, prompt, max_tokens, ""):
            if chunk.choices:
                yield time.perf_counter()

    def get(self, path: str, kind: type[T]) -> T:
        with self._exchange("GET", path, None, {}) as response:
            return self._decoded(response.read(), kind)

    def post(self, path: str, body: dict[str, object]) -> None:
        with self._exchange("POST", path, body, {}) as response:
            response.read()

    def _stream(
        self, model: str, prompt: list[int], max_tokens: int, worker: str
    ) -> Iterator[_Chunk]:
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {_WORKER_HEADER: worker} if worker else {}
        with self._exchange("POST", "/v1/completions", body, headers) as response:
            for line in response:
                data = line.removeprefix(b"data: ").strip()
                if data != line.strip() and data != b"[DONE]":
                    yield self._decoded(data, _Chunk)

    def _decoded(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise CommandFailed(f"{self._url} answered {data[:200]!r}: {error}") from error

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: dict[str, object] | None, headers: dict[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """On a connection of its own."""
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=_DEADLINE_SECONDS
        )
        payload = None if body is None else msgspec.json.encode(body)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, payload, {**self._headers, **headers})
                response = connection.getresponse()
                if response.status != 200:
                    raise CommandFailed(
                        f"{self._url}{path} answered {response.status}: {response.read()!r}"
                    )
                yield response
            except (OSError, http.client.HTTPException) as error:
                raise CommandFailed(f"{self._url}{path}: {error}") from error
