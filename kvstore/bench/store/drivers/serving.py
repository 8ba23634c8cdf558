"""The loop of a contestant's process: every contestant is timed by the same lines."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .contract import Store
from .timing import Areas, Bench

Request = Mapping[str, Any]
Operation = Callable[[Request], Any]


class Driver:
    """A store, and what else its driver can be asked."""

    def __init__(
        self,
        version: str,
        store: Store,
        *,
        operations: Mapping[str, Operation] | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.version = version
        self.store = store
        self.operations = dict(operations or {})
        self.close = close


def serve(begin: Callable[[Request], Driver]) -> None:
    """Answers requests until stdin ends. The first is `begin`, whose settings `begin` gets.

    What a library prints goes to stderr: stdout carries answers alone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = (json.loads(line) for line in sys.stdin)
    driver = None
    try:
        first = next(requests)
        driver = _begin(begin, first, answers.write)
        answers.flush()
        if driver is not None:
            areas = Areas(first["area_bytes"])
            for answer in _answers(driver, areas, requests):
                answers.write(answer)
                answers.flush()
    finally:
        if driver is not None:
            driver.close()


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


def _answers(driver: Driver, areas: Areas, requests: Iterator[Request]) -> Iterator[str]:
    bench = Bench(driver.store, areas)
    for request in requests:
        try:
            yield json.dumps({"ok": _answer(driver, bench, request)}) + "\n"
        except Exception as error:  # noqa: BLE001 - as above
            yield _error(error)


def _answer(driver: Driver, bench: Bench, request: Request) -> Any:
    gc.collect()
    gc.freeze()
    return driver.operations.get(request["do"], bench.run)(request)


def _error(error: Exception) -> str:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}) + "\n"
