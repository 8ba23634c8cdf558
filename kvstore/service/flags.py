"""Flags of several commands, and types that click lacks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from .values import Size


class Seconds(click.FloatRange):
    """click lets `nan` and `inf` pass, and JSON makes them null: a condition that is not there."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{seconds} is no number of seconds: give one, as 2.5", param, ctx)
        return seconds


def size_flag(text: str) -> int:
    """A plain number of bytes, of `4096` or `64MiB`."""
    try:
        return int(Size.parse(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _in_a_folder(
    context: click.Context, parameter: click.Parameter, value: Path | None
) -> Path | None:
    """Told before a long run, not after it."""
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"{value}: there is no folder {value.parent}: make it first")
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{value} is a folder: name a file in it")
    return value


json_file_flag = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    callback=_in_a_folder,
    help="Write the report here",
)
