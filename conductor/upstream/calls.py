"""HTTP to workers, with deadlines, over kept connections."""

from __future__ import annotations

import asyncio
import time
from typing import Self

import aiohttp
import msgspec

from .failures import CallFailed, Failure, failure_of, text_of
from .messages import FirstToken, GenerationBody
from .stream import SLICE_SECONDS, ChunkStream, Expect, Patience, stood_still

CONNECT_SECONDS = 3.0
MAX_ERROR_BYTES = 64 << 10
ERROR_SECONDS = 5.0
FIRST_TOKEN_SECONDS = 3.0
FIRST_TOKEN_TRIES = 3


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
            raise CallFailed(Failure.UNREACHABLE, text_of(error)) from error

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
                asked_at = time.monotonic()
                await asyncio.wait({sending}, timeout=SLICE_SECONDS)
                if not sending.done():
                    sent_at += stood_still(asked_at)
                    patience.check(sent_at, Expect.TURN)
            return ChunkStream(sending.result(), patience)
        except BaseException:
            sending.cancel()
            sending.add_done_callback(_close_unwanted)
            raise

    async def give_first_token(self, url: str, handoff_id: str, token_id: int) -> None:
        """Tells a decode worker token 1. Asked again when no answer comes, which is harmless: it
        takes the same token twice. Raises CallFailed."""
        path = f"{url}/v1/handoffs/{handoff_id}/first_token"
        data = msgspec.json.encode(FirstToken(token_id))
        headers = {"Content-Type": "application/json"}
        for attempt in range(1, FIRST_TOKEN_TRIES + 1):
            try:
                async with asyncio.timeout(FIRST_TOKEN_SECONDS):
                    response = await self._post_fresh(path, data, headers)
                    (await self._checked(response)).close()
                    return
            except TimeoutError as error:
                if attempt == FIRST_TOKEN_TRIES:
                    seconds = FIRST_TOKEN_TRIES * FIRST_TOKEN_SECONDS
                    text = f"it took no first token within {seconds:g} s"
                    raise CallFailed(Failure.SILENT, text) from error
            except CallFailed as failed:
                if failed.failure is not Failure.UNREACHABLE or attempt == FIRST_TOKEN_TRIES:
                    raise

    async def _generate(self, url: str, data: bytes, request_id: str) -> aiohttp.ClientResponse:
        headers = {"X-Request-Id": request_id, "Content-Type": "application/json"}
        path = f"{url}/v1/completions"
        try:
            response = await self._kept.post(path, data=data, headers=headers)
        except aiohttp.ClientConnectorError as error:
            raise CallFailed(Failure.UNREACHABLE, text_of(error)) from error
        except (aiohttp.ClientError, OSError):  # a kept connection was closed: once, a new one
            response = await self._post_fresh(path, data, headers)
        return await self._checked(response)

    async def _post_fresh(
        self, url: str, data: bytes, headers: dict[str, str]
    ) -> aiohttp.ClientResponse:
        try:
            return await self._fresh.post(url, data=data, headers=headers, allow_redirects=False)
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(Failure.UNREACHABLE, text_of(error)) from error

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
        raise failure_of(response.status, raw)


def _close_unwanted(sending: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """The answer to a request that was given up."""
    if not sending.cancelled() and sending.exception() is None:
        sending.result().close()
