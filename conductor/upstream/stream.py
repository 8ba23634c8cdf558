"""One completion as a stream of chunks, and how long its next one is waited for."""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from moontide.kvstore.following import EventParser, EventTooLarge

from .failures import CallFailed, Failure, text_of
from .messages import Chunk

SLICE_SECONDS = 0.5
"""How often a silent stream asks whether its worker is lost."""

_CHUNKS = msgspec.json.Decoder(Chunk)
_DONE = b"[DONE]"


class Expect(enum.Enum):
    """What a stream is to bring next, which says what counts as progress. A request may only wait
    behind others of its worker, queued or preempted, so a token for any of them counts."""

    TURN = "its turn"  # so do signs of life
    TOKEN = "a token"
    NOTHING = "nothing before another worker has done its part"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stream is waited for. Seconds count from the last progress."""

    first_token_seconds: float
    token_seconds: float
    last_token: Callable[[], float]  # when the worker last gave anybody one, monotonic
    is_lost: Callable[[], bool]

    def check(self, progress_at: float, expect: Expect) -> None:
        """Raises CallFailed when there is nothing to wait for."""
        if self.is_lost():
            raise CallFailed(Failure.SILENT, "the worker is lost")
        if expect is Expect.NOTHING:
            return
        limit = self.first_token_seconds if expect is Expect.TURN else self.token_seconds
        if time.monotonic() - max(progress_at, self.last_token()) > limit:
            raise CallFailed(Failure.SILENT, f"the worker made no progress for {limit:g} s")


def stood_still(since: float) -> float:
    """Seconds that a wait of SLICE_SECONDS, begun at `since`, took too long: this process was
    stopped or held up, so that nobody else's silence may be judged by them."""
    return max(0.0, time.monotonic() - since - SLICE_SECONDS)


class ChunkStream:
    """The chunks of one answer. `close` ends the connection at once, so the worker sees an abort
    unless the stream had ended. A cancelled `next` loses nothing."""

    def __init__(self, response: aiohttp.ClientResponse, patience: Patience) -> None:
        self._response = response
        self._patience = patience
        self._parser = EventParser()
        self._ready: deque[bytes] = deque()
        self._progress_at = time.monotonic()
        self._expect = Expect.TURN

    def expect(self, expect: Expect) -> None:
        """From now on. The first chunk makes it TOKEN by itself."""
        self._expect = expect
        self._progress_at = time.monotonic()

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
        self.expect(Expect.TOKEN)
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
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(SLICE_SECONDS):
                    piece = await self._response.content.readany()
            except TimeoutError:
                self._progress_at += stood_still(asked_at)
                self._patience.check(self._progress_at, self._expect)
                continue
            except (aiohttp.ClientError, OSError) as error:
                raise CallFailed(
                    Failure.UNREACHABLE, f"the worker went away: {text_of(error)}"
                ) from error
            if not piece:
                raise CallFailed(Failure.UNREACHABLE, "the worker ended its stream too early")
            if self._expect is Expect.TURN:
                self._progress_at = time.monotonic()
            return piece
