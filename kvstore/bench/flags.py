"""What flags of several benchmarks say."""

from __future__ import annotations

from pathlib import Path

import click

from ..service import CommandFailed, Size

rounds_flag = click.option(
    "--rounds",
    default=5,
    show_default=True,
    type=click.IntRange(1, 100),
    help="That count, of each case",
)
peer_dir_flag = click.option(
    "--peer-dir", type=click.Path(path_type=Path), help="Where peers are installed [~/.cache]"
)
json_file_flag = click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the report here"
)


def size_of(text: str) -> int:
    """Raises CommandFailed."""
    try:
        return int(Size.parse(text))
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def sizes_of(text: str) -> tuple[int, ...]:
    """Of `4KiB,1MiB`. Raises CommandFailed."""
    return tuple(size_of(size) for size in text.split(",") if size)
