"""The `moontide` command. Subcommands come from entry points and are imported only when asked for,
so help is fast and one component's missing dependency spoils nothing else."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import click

_COMMANDS = "moontide.commands"
_BENCHES = "moontide.benches"
_SUMMARIES = {
    _COMMANDS: {
        "admin": "Ask a store daemon: stats, blocks, evict, clear, audit …",
        "bench": "Measure this machine against its limits",
        "conductor": "OpenAI-compatible front end that routes by prefix hit",
        "demo": "Start everything, send real prompts, print a table",
        "doctor": "What this machine has, beside what a store needs",
        "store": "The store daemon, one a node",
        "up": "Run a whole cluster on this machine until Ctrl-C",
        "worker": "The built-in engine: prefill, decode or both",
    },
    _BENCHES: {
        "serve": "TTFT cold, cached, and the price of storing",
        "store": "Calls, memory and disk beside Mooncake, Redis, LMCache and the limits",
        "transfer": "Bytes over TCP beside NIXL, Mooncake, raw sockets and memcpy",
    },
}


class LazyGroup(click.Group):
    """A group whose commands are the entry points named `group`."""

    def __init__(self, *args: Any, entry_points: str, **kwargs: Any) -> None:  # click's own
        super().__init__(*args, **kwargs)
        self._entry_points = entry_points

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(metadata.entry_points(group=self._entry_points).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = metadata.entry_points(group=self._entry_points)
        if cmd_name not in found.names:
            return None
        try:
            command = found[cmd_name].load()
        except ImportError as error:
            # Imported here: it brings the HTTP stack, which `moontide --help` does without.
            from .service import explain_import_error

            click.echo(f"{ctx.command_path} {cmd_name}: {explain_import_error(error)}", err=True)
            sys.exit(1)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        summaries = _SUMMARIES.get(self._entry_points, {})
        rows = [(name, summaries.get(name, "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    entry_points=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="moontide")
def main() -> None:
    """Moontide: a KVCache-centric tiered cache store for LLM serving."""


@click.group(cls=LazyGroup, entry_points=_BENCHES)
def bench() -> None:
    """Interleaved measurements in one run, with medians and spread; --json FILE for scripts."""


if __name__ == "__main__":
    main(prog_name="moontide")
