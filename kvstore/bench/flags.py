"""What flags of several benchmarks say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import click
from click.core import ParameterSource

from ..service import Seconds, SettingsError, Size

_MOST_DIGITS = 9
"""Of a count: more are refused before they are read as a number."""

rounds_flag = click.option(
    "--rounds",
    default=5,
    show_default=True,
    type=click.IntRange(1, 100),
    help="That count, of each case",
)
peer_dir_flag = click.option(
    "--peer-dir",
    type=click.Path(path_type=Path),
    help="Where peers are installed [~/.cache/moontide/bench]",
)
round_seconds_flag = click.option(
    "--round-seconds",
    default=0.2,
    show_default=True,
    type=Seconds(0.0, 60.0),
    help="Of timed calls, per contestant; two calls at least",
)


def given_flags() -> Iterator[tuple[str, str]]:
    """Parameter name and flag of all that the running command was given on its command line."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield name, parameter.opts[0]


def check_effect(
    cases_of_flag: Mapping[str, Collection[str]], chosen_cases: Collection[str]
) -> None:
    """`cases_of_flag`: which cases a flag has an effect on, where not on all. Raises SettingsError
    naming a flag that was given and has none on those chosen."""
    for name, flag in given_flags():
        cases = cases_of_flag.get(name)
        if cases is not None and not set(cases) & set(chosen_cases):
            raise SettingsError(
                f"{flag} has no effect on --case {', '.join(chosen_cases)}, but on "
                f"{', '.join(cases)}: leave it out"
            )


def size_of(flag: str, text: str, least: int = 0) -> int:
    """Raises SettingsError."""
    try:
        size = Size.parse(text)
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from error
    if size < least:
        raise SettingsError(f"{flag} {size}: give at least {Size(least)}")
    return int(size)


def sizes_of(flag: str, text: str, most: int) -> tuple[int, ...]:
    """Of `4KiB,1MiB`, each once; nothing of no text. Raises SettingsError."""
    sizes = [size_of(flag, item) for item in text.split(",")] if text else []
    for size in sizes:
        if not 1 <= size <= most:
            raise SettingsError(f"{flag} {Size(size)}: give sizes from 1 to {Size(most)}")
    return tuple(dict.fromkeys(sizes))


def counts_of(flag: str, text: str, most: int) -> tuple[int, ...]:
    """Of `1,2`, each once; nothing of no text. Raises SettingsError."""
    counts = [item.strip() for item in text.split(",")] if text else []
    for count in counts:
        is_count = count.isdecimal() and len(count) <= _MOST_DIGITS and 1 <= int(count) <= most
        if not is_count:
            raise SettingsError(f"{flag} {count[:40]!r}: give numbers from 1 to {most}, as 1,2")
    return tuple(dict.fromkeys(map(int, counts)))
