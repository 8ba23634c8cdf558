"""Calls to workers: one completion as a stream of chunks, with deadlines, over kept connections."""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import aiohttp
import msgspec

from moontide.kvstore.following import EventParser, EventTooLarge

from .protocol import Usage

CONNECT_SECONDS = 3.0
SLICE_SECONDS = 1.0
"""How often a silent stream asks whether its worker is lost."""
MAX_ERROR_BYTES = 64 << 10
ERROR_SECONDS = 5.0


class Failure(enum.StrEnum):
    """Why a call to a worker came to nothing."""

    REFUSED = "refused"  # the request is at fault: no other worker would take it
    BUSY = "busy"  # 429 or 503: another may take it
    BROKEN = "broken"  # it answered, but not as agreed
    UNREACHABLE = "unreachable"  # no connection, or it broke
    SILENT = "silent"  # no progress until the deadline, or lost


class CallFailed(Exception):
    """A call came to nothing; `field` names what the worker found at fault in the request."""

    def __init__(self, failure: Failure, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.field = field


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker's `POST /v1/completions` is asked."""

    prompt: list[int]
    model: str
    max_tokens: int
    stream: bool
    stream_options: dict[str, bool]
    return_token_ids: bool
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False


class ChunkChoice(msgspec.Struct, frozen=True):
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str = ""
    param: str | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a worker's stream."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    moontide: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorDetail | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail = ErrorDetail()


_CHUNKS = msgspec.json.Decoder(Chunk)
_ERRORS = msgspec.json.Decoder(_ErrorBody)
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stream is waited for. Seconds count from the last progress."""

    first_token_seconds: float
    token_seconds: float
    last_token: Callable[[], float]  # when the worker last gave anybody one, monotonic
    is_lost: Callable[[], bool]

    def check(self, progress_at: float, *, is_first: bool) -> None:
        """Raises CallFailed when there is nothing to wait for. Until its first token a request may
        only be queued behind others, so their tokens count as its progress."""
        if self.is_lost():
            raise CallFailed(Failure.SILENT, "the worker is lost")
        since, limit = progress_at, self.token_seconds
        if is_first:
            since, limit = max(progress_at, self.last_token()), self.first_token_seconds
        if time.monotonic() - since > limit:
            raise CallFailed(Failure.SILENT, f"the worker made no progress for {limit:g} s")


class ChunkStream:
    """The chunks of one answer. `close` ends the connection at once, so the worker sees an abort
    unless the stream had ended."""

    def __init__(self, response: aiohttp.ClientResponse, patience: Patience) -> None:
        self._response = response
        self._patience = patience
        self._parser = EventParser()
        self._ready: deque[bytes] = deque()
        self._progress_at = time.monotonic()
        self._is_first = True

    async def next(self) -> Chunk | None:
        """The next chunk, None after the last. Raises CallFailed."""
        while not self._ready:
            self._take(await self._read())
        data = self._ready.popleft()
        if data == _DONE:
            await self._read_end()
            return None
        try:
            chunk = _CHUNKS.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CallFailed(
                Failure.BROKEN, f"the worker sent a malformed chunk: {error}"
            ) from error
        if chunk.error is not None:
            raise CallFailed(Failure.BROKEN, f"the worker failed: {chunk.error.message}")
        self._is_first = False
        return chunk

    def close(self) -> None:
        self._response.close()

    def release(self) -> None:
        """After the last chunk: the connection is kept for the next request."""
        self._response.release()

    async def _read_end(self) -> None:
        """Take in the end of the body, without which the connection cannot be kept."""
        try:
            async with asyncio.timeout(SLICE_SECONDS):
                await self._response.content.readany()
        except (TimeoutError, aiohttp.ClientError, OSError):
            self._response.close()

    def _take(self, piece: bytes) -> None:
        try:
            self._ready.extend(event.data for event in self._parser.feed(piece))
        except EventTooLarge as error:
            raise CallFailed(
                Failure.BROKEN, f"the worker's stream is malformed: {error}"
            ) from error

    async def _read(self) -> bytes:
        while True:
            try:
                async with asyncio.timeout(SLICE_SECONDS):
                    piece = await self._response.content.readany()
            except TimeoutError:
                self._patience.check(self._progress_at, is_first=self._is_first)
                continue
            except (aiohttp.ClientError, OSError) as error:
                raise CallFailed(
                    Failure.UNREACHABLE, f"the worker went away: {_text(error)}"
                ) from error
            if not piece:
                raise CallFailed(Failure.UNREACHABLE, "the worker ended its stream too early")
            self._progress_at = time.monotonic()
            return piece


class WorkerCalls:
    """Sessions to all workers. A context manager of the process's life."""

    def __init__(self, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._kept = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # bounded by the requests in flight
            headers=headers,
            timeout=timeout,
        )
        self._fresh = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            headers=headers,
            timeout=timeout,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._kept.close()
        await self._fresh.close()

    async def get(self, url: str, *, timeout_s: float, max_bytes: int) -> tuple[int, bytes]:
        """Status and body. Raises CallFailed."""
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._fresh.get(url, allow_redirects=False) as response,
            ):
                body = await response.content.read(max_bytes + 1)
                while len(body) <= max_bytes and (piece := await response.content.readany()):
                    body += piece
                if len(body) > max_bytes:
                    raise CallFailed(Failure.BROKEN, f"{url} answers over {max_bytes} bytes")
                return response.status, body
        except TimeoutError as error:
            raise CallFailed(Failure.SILENT, f"no answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(Failure.UNREACHABLE, _text(error)) from error

    @property
    def event_session(self) -> aiohttp.ClientSession:
        """For the event streams of stores; closed with these calls."""
        return self._fresh

    async def generate(
        self, url: str, body: GenerationBody, request_id: str, patience: Patience
    ) -> ChunkStream:
        """Sends a request and waits for its answer to begin. A kept connection that turns out to
        be closed is replaced once by a new one. Raises CallFailed."""
        sending = asyncio.create_task(self._generate(url, msgspec.json.encode(body), request_id))
        sent_at = time.monotonic()
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=SLICE_SECONDS)
                if not sending.done():
                    patience.check(sent_at, is_first=True)
            return ChunkStream(sending.result(), patience)
        except BaseException:
            sending.cancel()
            sending.add_done_callback(_close_unwanted)
            raise

    async def _generate(self, url: str, data: bytes, request_id: str) -> aiohttp.ClientResponse:
        headers = {"X-Request-Id": request_id, "Content-Type": "application/json"}
        path = f"{url}/v1/completions"
        try:
            response = await self._kept.post(path, data=data, headers=headers)
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(Failure.UNREACHABLE, _text(error)) from error
        except (aiohttp.ClientError, OSError):  # a kept connection was closed: once, a new one
            response = await self._send(self._fresh, "POST", path, data, headers)
        return await self._checked(response)

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> aiohttp.ClientResponse:
        try:
            return await session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(Failure.UNREACHABLE, _text(error)) from error

    async def _checked(self, response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
        """The response when it is a success; else its error. The body of an error is bounded."""
        if response.status == 200:
            return response
        try:
            async with asyncio.timeout(ERROR_SECONDS):
                raw = await response.content.read(MAX_ERROR_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError):
            raw = b""
        finally:
            response.close()
        raise _failure(response.status, raw)


def _failure(status: int, raw: bytes) -> CallFailed:
    try:
        detail = _ERRORS.decode(raw).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        detail = ErrorDetail(raw[:200].decode("utf-8", "replace"))
    told = detail.message or "no reason given"
    if status in (429, 503):
        return CallFailed(Failure.BUSY, f"the worker answered {status}: {told}")
    if status in (400, 413, 422):
        return CallFailed(Failure.REFUSED, told, field=detail.param)
    return CallFailed(Failure.BROKEN, f"the worker answered {status}: {told}")


def _close_unwanted(sending: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """The answer to a request that was given up."""
    if not sending.cancelled() and sending.exception() is None:
        sending.result().close()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
