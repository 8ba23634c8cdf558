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


class Contestant:
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


def serve(begin: Callable[[Request], Contestant]) -> None:
    """Answers requests until stdin ends. The first is `begin`, whose settings `begin` gets.

    What a library prints goes to stderr: stdout carries answers alone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = (json.loads(line) for line in sys.stdin)
    contestant = None
    try:
        first = next(requests)
        contestant = _begin(begin, first, answers.write)
        answers.flush()
        if contestant is not None:
            areas = Areas(first["area_bytes"])
            for answer in _answers(contestant, areas, requests):
                answers.write(answer)
                answers.flush()
    finally:
        if contestant is not None:
            contestant.close()


def _begin(
    begin: Callable[[Request], Contestant], request: Request, write: Callable[[str], object]
) -> Contestant | None:
    try:
        contestant = begin(request)
    except Exception as error:  # noqa: BLE001 - whatever a peer's library raises ends in one answer
        write(_error(error))
        return None
    write(json.dumps({"ok": {"version": contestant.version}}) + "\n")
    return contestant


def _answers(contestant: Contestant, areas: Areas, requests: Iterator[Request]) -> Iterator[str]:
    bench = Bench(contestant.store, areas)
    for request in requests:
        try:
            yield json.dumps({"ok": _answer(contestant, bench, request)}) + "\n"
        except Exception as error:  # noqa: BLE001 - as above
            yield _error(error)


def _answer(contestant: Contestant, bench: Bench, request: Request) -> Any:
    gc.collect()
    gc.freeze()
    return contestant.operations.get(request["do"], bench.run)(request)


def _error(error: Exception) -> str:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:500]}) + "\n"
