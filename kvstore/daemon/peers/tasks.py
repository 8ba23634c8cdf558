"""Background work of the peers: bounded, logged, ended with the daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from ...errors import Busy

logger = logging.getLogger(__name__)

MAX_TASKS = 1024


class TaskGroup:
    """Tasks that nobody waits for until `close`, which cancels them and waits."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they began

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def has_room(self) -> bool:
        """Ask before new work is taken in; what belongs to work under way is started anyway."""
        return len(self._tasks) < MAX_TASKS

    def check_room(self) -> None:
        """Raises Busy."""
        if not self.has_room:
            raise Busy(
                f"{len(self._tasks)} tasks with other stores are under way, the limit; retry later"
            )

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait([*self._tasks])

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            logger.error("peer_task_failed", exc_info=task.exception())
