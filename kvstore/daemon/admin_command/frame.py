"""What every subcommand shares: its options, its connection, how it prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from ...service import Seconds, default_token_file, guarded
from ..admin_client import AdminClient, read_token

TIER = click.Choice(["dram", "nvme"])
DEFAULT_URL = "http://127.0.0.1:7421"
LONGEST_WAIT_SECONDS = 86_400


def connected(command: Callable[..., int]) -> Callable[..., None]:
    """Adds the options every subcommand has. `command` gets a client and `as_json` before its own
    and returns the exit status; errors end in one line on stderr."""

    def run(
        url: str, token_file: Path | None, as_json: bool, timeout: float, **options: Any
    ) -> None:
        def body() -> int:
            path = token_file or default_token_file(os.environ.get("XDG_STATE_HOME"))
            client = AdminClient(url, read_token(path), timeout_s=timeout)
            return command(client, as_json, **options)

        sys.exit(guarded("admin", body))

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click's own attribute
    for option in (
        click.option("--url", default=DEFAULT_URL, show_default=True, help="The store's --admin"),
        click.option("--token-file", type=click.Path(path_type=Path), help="The store's token"),
        click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON"),
        click.option(
            "--timeout",
            default=60.0,
            show_default=True,
            type=Seconds(0, LONGEST_WAIT_SECONDS, min_open=True),
            help="Seconds to wait for the answer",
        ),
    ):
        run = option(run)
    return run


def table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def print_tables(*tables: Table) -> int:
    console = Console()
    for table in tables:
        console.print(table)
    return 0


def print_json(answer: object) -> int:
    click.echo(msgspec.json.encode(answer).decode())
    return 0
