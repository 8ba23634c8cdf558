"""A plain HTTP client, so that what is measured is what any client sees."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from moontide.kvstore.service import CommandFailed

from ..engine.stats import EngineStats
from ..worker.api import Usage

_DEADLINE_SECONDS = 120.0  # of one answer
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.02


class _Chunk(msgspec.Struct, frozen=True):
    """The part of a streamed chunk that is needed here."""

    choices: list[msgspec.Raw] = []
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    seconds: float  # from before the connection was opened
    cached_tokens: int  # of the prompt, as the worker tells


class Client:
    """Of one worker, or of the Conductor for `first_token`. Whatever is not as agreed raises
    CommandFailed: there is nothing to measure then."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}

    def first_token(self, model: str, prompt: list[int]) -> FirstToken:
        """Asks for one token."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first: float | None = None
        usage: Usage | None = None
        started = time.perf_counter()
        with self._exchange("POST", "/v1/completions", body) as response:
            for line in response:
                data = line.removeprefix(b"data: ").strip()
                if data == line.strip() or data == b"[DONE]":
                    continue
                chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.choices and first is None:
                    first = time.perf_counter()
                usage = chunk.usage or usage
        if first is None or usage is None:
            raise CommandFailed(f"{self._url} streamed no token, or no usage")
        return FirstToken(first - started, usage.prompt_tokens_details.cached_tokens)

    def clear_cache(self) -> None:
        """The worker forgets its own blocks; those in the store stay."""
        with self._exchange("POST", "/v1/cache/clear", {}) as response:
            response.read()

    def settle(self) -> None:
        """Waits until the store has everything that the worker offered."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while jobs := self._stats().store.outstanding_jobs:
            if time.monotonic() > deadline:
                raise CommandFailed(f"{jobs} store jobs still run after {_SETTLE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def _stats(self) -> EngineStats:
        with self._exchange("GET", "/v1/stats", None) as response:
            return msgspec.json.decode(response.read(), type=EngineStats)

    @contextlib.contextmanager
    def _exchange(
        self, method: str, path: str, body: dict[str, object] | None
    ) -> Iterator[http.client.HTTPResponse]:
        """On a connection of its own."""
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=_DEADLINE_SECONDS
        )
        payload = None if body is None else msgspec.json.encode(body)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, payload, self._headers)
                response = connection.getresponse()
                if response.status != 200:
                    raise CommandFailed(
                        f"{self._url}{path} answered {response.status}: {response.read()!r}"
                    )
                yield response
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
                raise CommandFailed(f"{self._url}{path}: {error}") from error
