"""asyncio's own event loop, on simulated descriptors and time."""

from __future__ import annotations

import asyncio
import signal
import weakref
from collections.abc import Callable, Coroutine
from concurrent import futures
from typing import Any

from .files import Files, Selector
from .threads import Executor


class Loop(asyncio.SelectorEventLoop):
    """`send_signal` is what `kill` does; otherwise as any loop."""

    def __init__(self, files: Files) -> None:
        self._scheduler = files.scheduler
        self._wakeable = Selector(files)
        super().__init__(self._wakeable)
        self._handlers: dict[int, Callable[[], object]] = {}
        self._pool = Executor(files.scheduler, thread_name_prefix="pool")
        self._tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], None]
        self._tasks = weakref.WeakKeyDictionary()  # in the order of their making
        self.set_exception_handler(self._report)

    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:  # type: ignore[override]  # all it is called with
        task = super().create_task(coro, **named)
        self._tasks[task] = None
        return task

    async def end_others(self) -> None:
        """All tasks but the one that asks, as `asyncio.run` does at its end, but in the order of
        their making: its own set has that of their addresses."""
        asking = asyncio.current_task()
        left = [task for task in self._tasks if task is not asking and not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def time(self) -> float:
        return self._scheduler.read_clock()

    def _make_self_pipe(self) -> None:
        """`_write_to_self` needs none."""
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._wakeable.wake()

    def run_in_executor(
        self, executor: futures.Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future((executor or self._pool).submit(func, *args), loop=self)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Its threads end by themselves."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._handlers[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._handlers.pop(sig, None) is not None

    def send_signal(self, number: signal.Signals) -> None:
        self.call_soon_threadsafe(self._handlers[number])

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._scheduler.is_over:
            error = context.get("exception") or RuntimeError(context["message"])
            self._scheduler.report(context["message"], error)
