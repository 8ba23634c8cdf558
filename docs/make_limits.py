"""docs/limits.md from limits.toml: every bound, with its value from the code.

A constant MAX_… of the folders in WATCHED that limits.toml does not name fails the making of the
page: whoever adds a bound says there what happens when it is reached."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import msgspec
from make_settings import table_row

from moontide.kvstore.service import Size

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("limits.toml")
WATCHED = ("kvstore/daemon", "kvstore/store", "kvstore/nvme", "kvstore/client", "kvstore/wire")
HEAD = """\
# Limits

Made from the code by `make docs`: what bounds each queue, tier and holder, its default, and what
happens there. A flag is of `moontide store` unless it says otherwise; a constant is named with its
module below `moontide`. Nothing waits at a limit: it is a typed error (retryable where trying again
helps), an eviction, or not being read from. A start refuses sizes that the machine cannot give, and
[`moontide doctor`](operations.md#doctor) shows them before.
"""


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`source`: `--flag`, `command --flag`, or `package.module:NAME`."""

    what: str
    source: str
    reached: str
    seen: str = ""


def limits_text() -> str:
    others, sections = _read()
    check_complete(others, sections)
    parts = [HEAD]
    for title, bounds in sections.items():
        parts.append(f"\n## {title}\n\n| what | default | set by | when reached | seen as |\n")
        parts.append("|---|---|---|---|---|\n")
        parts += [_row(bound) for bound in bounds]
    return "".join(parts)


def _read() -> tuple[list[str], dict[str, list[Bound]]]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    others = msgspec.convert(table.pop("others"), list[str])
    return others, msgspec.convert(table, dict[str, list[Bound]])


def check_complete(others: list[str], sections: dict[str, list[Bound]]) -> None:
    known = {bound.source for bounds in sections.values() for bound in bounds} | {*others}
    missing = sorted(set(_constants()) - known)
    if missing:
        raise LookupError(f"say in docs/limits.toml what these bound: {' '.join(missing)}")


def _constants() -> Iterator[str]:
    """`module:NAME` of each public MAX_… of the watched folders."""
    for folder in WATCHED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = node.targets if isinstance(node, ast.Assign) else []
                for target in targets:
                    if isinstance(target, ast.Name) and target.id.startswith("MAX_"):
                        yield f"{module}:{target.id}"


def _row(bound: Bound) -> str:
    return table_row(
        bound.what, _value(bound.source), f"`{bound.source}`", bound.reached, bound.seen
    )


def _value(source: str) -> str:
    if "--" in source:
        return _default(source)
    module, _, name = source.partition(":")
    found: object = importlib.import_module(f"moontide.{module}")
    owner, _, field = name.rpartition(".")
    if owner:
        kind = getattr(found, owner)
        value = kind.__dataclass_fields__[field].default
    else:
        value = getattr(found, name)
    is_size = "bytes" in name.lower() or name == "OUTPUT_HIGH"
    return str(Size(value)) if is_size else f"{value:g}" if isinstance(value, float) else str(value)


def _default(source: str) -> str:
    command, _, flag = source.rpartition(" ")
    option = _options(command or "store")[flag]
    shown = re.search(r"\[default: (.*); MOONTIDE_\w+\]$", option.help or "")
    assert shown is not None, source
    return shown[1].strip('"')


def _options(command: str) -> dict[str, click.Option]:
    loaded = metadata.entry_points(group="moontide.commands")[command].load()
    return {option.opts[0]: option for option in loaded.params if isinstance(option, click.Option)}
