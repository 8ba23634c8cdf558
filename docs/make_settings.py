"""Writes docs/settings.md from the commands' own options: `make docs`. A test compares the two."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import click

COMMANDS = ("store", "worker", "conductor", "up", "demo")
PATH = Path(__file__).with_name("settings.md")
HEAD = """\
# Settings

Made from the code by `make docs`. A flag overrides `MOONTIDE_<COMMAND>_<KEY>` in the environment,
which overrides the TOML file given with `--config` (keys as the flag, with `_` for `-`), which
overrides the default. `--print-config` shows every value in force and where it came from. Unknown
names fail at start.
"""


def settings_text() -> str:
    entry_points = metadata.entry_points(group="moontide.commands")
    parts = [HEAD]
    for name in COMMANDS:
        command = entry_points[name].load()
        parts.append(
            f"\n## moontide {name}\n\n{command.help}\n\n| flag | value | what |\n|---|---|---|\n"
        )
        parts += [_row(option) for option in command.params if isinstance(option, click.Option)]
    return "".join(parts)


def _row(option: click.Option) -> str:
    cells = (f"`{option.opts[0]}`", option.metavar or "", option.help or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PATH.write_text(settings_text(), encoding="utf-8")
