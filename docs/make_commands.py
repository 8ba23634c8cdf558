"""docs/commands.md from the commands that run once: their subcommands, arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import click
from make_settings import COMMANDS, TABLE_HEAD, table_row

HEAD = """\
# Commands

Made from the code by `make docs`: the commands that run once and end. Those that run daemons, and
their settings, are in [settings.md](settings.md). Each takes `--help`.
"""


def commands_text() -> str:
    entry_points = metadata.entry_points(group="moontide.commands")
    parts = [HEAD]
    for name in sorted(entry_points.names):
        if name not in COMMANDS:
            parts += _sections(f"moontide {name}", entry_points[name].load())
    return "".join(parts)


def _sections(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    title = " ".join([path, *arguments])
    yield f"\n## {title}\n\n{' '.join((command.help or '').split())}\n"
    options = [p for p in command.params if isinstance(p, click.Option)]
    if options:
        yield "\n" + TABLE_HEAD
        yield from (_row(option, context) for option in options)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None, name
            yield from _sections(f"{path} {name}", subcommand)


def _row(option: click.Option, context: click.Context) -> str:
    names, text = option.get_help_record(context) or ("", "")
    flag, _, value = names.partition(" ")
    return table_row(f"`{flag}`", value.strip(), " ".join(text.split()))
