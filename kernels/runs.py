"""Runs of neighbouring pages: what can be copied or viewed as one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def page_runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first page, length) of each maximal ascending run, in order."""
    first = length = 0
    for page in pages:
        if length and page == first + length:
            length += 1
            continue
        if length:
            yield first, length
        first, length = page, 1
    if length:
        yield first, length
