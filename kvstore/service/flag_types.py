"""Types of flags that click lacks."""

from __future__ import annotations

import math
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
