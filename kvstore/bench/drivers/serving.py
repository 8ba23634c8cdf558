"""The loop of a contestant's process: every contestant is timed by the same lines."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .contract import Failed

_PR_SET_PDEATHSIG = 1

Request = Mapping[str, Any]
Operation = Callable[[Request], Any]


class Driver:
    """What a contestant can be asked, by name."""

    def __init__(
        self,
        version: str,
        operations: Mapping[str, Operation],
        *,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.version = version
        self.close = close
        self._operations = operations

    def answer(self, request: Request) -> Any:
        """What the operation gives, its garbage collected before. Raises Failed, and whatever a
        peer's library raises."""
        operation = self._operations.get(request["do"])
        if operation is None:
            raise Failed(f"{request['do']!r} is nothing that can be asked here")
        gc.collect()
        gc.freeze()
        return operation(request)


def serve(begin: Callable[[Request], Driver]) -> None:
    """Answers requests until stdin ends. The first is `begin`, whose settings `begin` gets.

    What a library prints goes to stderr: stdout carries answers alone. Who asks may stop this
    process group in between (contestants.py); if it is gone then, the group runs on, to its end."""
    _continue_when_the_parent_ends()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = (json.loads(line) for line in sys.stdin)
    driver = None
    try:
        driver = _begin(begin, next(requests), answers.write)
        answers.flush()
        if driver is not None:
            for answer in _answers(driver, requests):
                answers.write(answer)
                answers.flush()
    finally:
        os.killpg(0, signal.SIGCONT)  # the servers, whoever has stopped them
        if driver is not None:
            driver.close()


def _continue_when_the_parent_ends() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def _begin(
    begin: Callable[[Request], Driver], request: Request, write: Callable[[str], object]
) -> Driver | None:
    try:
        driver = begin(request)
    except Exception as error:  # noqa: BLE001 - whatever a peer's library raises ends in one answer
        write(_error(error))
        return None
    write(json.dumps({"ok": {"version": driver.version}}) + "\n")
    return driver


def _answers(driver: Driver, requests: Iterator[Request]) -> Iterator[str]:
    for request in requests:
        try:
            yield json.dumps({"ok": driver.answer(request)}) + "\n"
        except Exception as error:  # noqa: BLE001 - as above
            yield _error(error)


def _error(error: Exception) -> str:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}) + "\n"
