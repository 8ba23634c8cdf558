"""Prompts become token ids and block keys once, in a few threads beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeVar

from moontide.kvstore import BlockKey

from .cluster.models import Model
from .errors import Overloaded
from .generation import Generation

DEADLINE_SECONDS = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tokenised:
    """A prompt, and the keys of its full blocks."""

    token_ids: list[int]
    keys: list[BlockKey]


class TokeniserPool:
    """At most `max_waiting` prompts wait for its threads: further ones are refused at once."""

    def __init__(self, *, threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokenise")
        self._max_waiting = max_waiting
        self._waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def tokenise(self, generation: Generation, model: Model) -> Tokenised:
        """Raises BadRequest when the prompt cannot be rendered, Overloaded."""

        def work() -> Tokenised:
            token_ids = generation.encode(model)
            return Tokenised(token_ids, model.keys(token_ids))

        return await self.run(work)

    async def run(self, work: Callable[[], _T]) -> _T:
        """Raises Overloaded when too many wait, or it takes too long; else what `work` raises."""
        if self._waiting >= self._max_waiting:
            raise Overloaded(
                f"{self._waiting} prompts wait to be tokenised, the most allowed", retry_after_s=1.0
            )
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = self._executor.submit(work)
        future.add_done_callback(lambda _: _tell(loop, self._ended))
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            raise Overloaded(
                f"the prompt was not tokenised within {DEADLINE_SECONDS:g} s", retry_after_s=5.0
            ) from error

    def _ended(self) -> None:
        """A thread is done with it, or it was given up before one began: its place is free."""
        self._waiting -= 1


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended: nobody counts any more
        loop.call_soon_threadsafe(callback)
