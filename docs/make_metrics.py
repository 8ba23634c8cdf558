"""docs/metrics.md from what each process would answer on /metrics."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Union

import msgspec
from make_settings import table_row
from prometheus_client.parser import text_string_to_metric_families

from moontide.conductor.metrics import Metrics
from moontide.engine_adapters.builtin.engine.stats import EngineStats
from moontide.engine_adapters.builtin.worker.metrics import WorkerMetrics
from moontide.kvstore.daemon.admin.metrics import render
from moontide.kvstore.daemon.admin.report import StoreReport

HEAD = """\
# Metrics

Made from the code by `make docs`. Every process serves `GET /metrics` (Prometheus text; without a
token on loopback). Counters grow from the start of the process; labels are small closed sets, never
a key, a tenant or a peer. Seconds and bytes are base units. `GET /v1/stats` of stores and workers
says the same and more, as JSON.
"""


def metrics_text() -> str:
    parts = [HEAD]
    for title, text in (
        ("store", render(_example(StoreReport)).decode()),
        ("worker", WorkerMetrics(lambda: _example(EngineStats)).render().decode()),
        ("conductor", Metrics().text().decode()),
    ):
        parts.append(
            f"\n## moontide {title}\n\n| name | type | labels | what |\n|---|---|---|---|\n"
        )
        parts += _rows(text)
    return "".join(parts)


def _rows(text: str) -> Iterable[str]:
    for family in sorted(text_string_to_metric_families(text), key=lambda f: f.name):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        shown = ", ".join(f"`{label}`" for label in labels)
        yield table_row(f"`{name}`", family.type, shown, family.documentation)


def _example(kind: Any) -> Any:
    """A value of a type with everything in it, so that no family is left out."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return _example(next(option for option in arguments if option is not types.NoneType))
    if origin is typing.Annotated:
        return _example(arguments[0])
    if origin is dict:
        return {_example(arguments[0]): _example(arguments[1])}
    if origin in (list, tuple):
        return origin([_example(arguments[0])])
    if origin is typing.Literal:
        return arguments[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{f.name: _example(f.type) for f in msgspec.structs.fields(kind)})
    if hasattr(kind, "__dataclass_fields__"):
        return kind(**{name: _example(hint) for name, hint in typing.get_type_hints(kind).items()})
    return kind("x") if kind is str else kind()
