"""docs/settings.md from the options of the commands that run daemons."""

from __future__ import annotations

from importlib import metadata

import click

COMMANDS = ("store", "worker", "conductor", "up", "demo")
HEAD = """\
# Settings

Made from the code by `make docs`. A flag overrides `MOONTIDE_<COMMAND>_<KEY>` in the environment,
which overrides the TOML file given with `--config` (keys as the flag, with `_` for `-`), which
overrides the default. `--print-config` shows every value in force and where it came from. Unknown
names fail at start.
"""
TABLE_HEAD = "| flag | value | what |\n|---|---|---|\n"


def settings_text() -> str:
    entry_points = metadata.entry_points(group="moontide.commands")
    parts = [HEAD]
    for name in COMMANDS:
        command = entry_points[name].load()
        parts.append(f"\n## moontide {name}\n\n{command.help}\n\n{TABLE_HEAD}")
        parts += [_row(option) for option in command.params if isinstance(option, click.Option)]
    return "".join(parts)


def _row(option: click.Option) -> str:
    return table_row(f"`{option.opts[0]}`", option.metavar or "", option.help or "")


def table_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
