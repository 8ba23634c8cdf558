"""One request in the engine, as the event loop sees it."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..engine.engine import Engine
from ..engine.output import Output, Reserved
from ..engine.sequence import Handoff
from ..errors import EngineStopped
from ..model import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to generate. The last `num_resumed` ids of the prompt are output the caller has."""

    prompt_ids: list[int]
    sampling: Sampling
    num_resumed: int = 0
    handoff: Handoff | None = None


class Generation:
    """Raises what `Engine.submit` does. Leaving the context before its end aborts it."""

    def __init__(self, engine: Engine, task: Task) -> None:
        self._engine = engine
        self._news: asyncio.Queue[Output | Reserved] = asyncio.Queue()  # at most max_tokens + 2
        loop = asyncio.get_running_loop()

        def sink(news: Output | Reserved) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody listens
                loop.call_soon_threadsafe(self._news.put_nowait, news)

        self._sequence_id = engine.submit(
            task.prompt_ids,
            task.sampling,
            sink,
            num_resumed=task.num_resumed,
            handoff=task.handoff,
        )

    async def next(self) -> Output | Reserved:
        """Raises EngineStopped when the engine ends first."""
        news = await self._news.get()
        if isinstance(news, Output) and news.finish in ("error", "abort"):
            raise EngineStopped(news.message or "the request was aborted")
        return news

    def give_first_token(self, token_id: int) -> None:
        """Token 1 of a hand-off. Raises InvalidRequest, EngineStopped."""
        self._engine.give_first_token(self._sequence_id, token_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.abort(self._sequence_id)
