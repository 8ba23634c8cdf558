"""What flags of several benchmarks say."""

from __future__ import annotations

from ..service import CommandFailed, Size


def size_of(text: str) -> int:
    """Raises CommandFailed."""
    try:
        return int(Size.parse(text))
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def sizes_of(text: str) -> tuple[int, ...]:
    """Of `4KiB,1MiB`. Raises CommandFailed."""
    return tuple(size_of(size) for size in text.split(",") if size)
