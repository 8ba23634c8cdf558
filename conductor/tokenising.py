"""Prompts become token ids and block keys once, in a few threads beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from moontide.kvstore import BlockKey

from .cluster.models import Model
from .errors import Overloaded
from .generation import Generation

DEADLINE_SECONDS = 30.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tokenised:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        future.add_done_callback(self._ended)
        done, _ = await asyncio.wait({future}, timeout=DEADLINE_SECONDS)
        if not done:
            future.cancel()
            raise Overloaded(
                f"the prompt was not tokenised within {DEADLINE_SECONDS:g} s", retry_after_s=5.0
            )
        return future.result()

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # one that nobody waits for any more is no news
