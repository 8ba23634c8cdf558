"""What is measured: one row each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

KiB = 1 << 10
MiB = 1 << 20
OPCODES = ("read", "write")
SIZES = (4 * KiB, 64 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB)
BATCHES = (1, 32)
STREAMS = (1, 2)
THREADS = (1, 8)
MOST_BATCH = 128
MOST_STREAMS = 8
MOST_THREADS = 8
AREA_BYTES = 128 * MiB
"""Of what one contestant reads from, and of each of its three other areas."""


@dataclass(frozen=True, slots=True)
class Case:
    """`streams` in all, shared by `threads`, each of which makes one call of `batch` slices after
    the other."""

    opcode: str
    size_bytes: int
    batch: int
    streams: int
    threads: int

    @property
    def name(self) -> str:
        streams, threads = _number(self.streams, "stream"), _number(self.threads, "thread")
        return f"{self.opcode}, {streams}, {threads}"

    @property
    def bytes_in_flight(self) -> int:
        return self.size_bytes * self.batch * self.threads

    def request(self, budget_seconds: float) -> dict[str, Any]:
        return {
            "do": self.opcode,
            "size_bytes": self.size_bytes,
            "batch": self.batch,
            "streams": self.streams,
            "threads": self.threads,
            "budget_seconds": budget_seconds,
        }


@dataclass(frozen=True, slots=True)
class Grid:
    """Every combination."""

    opcodes: Sequence[str] = OPCODES
    sizes: Sequence[int] = SIZES
    batches: Sequence[int] = BATCHES
    streams: Sequence[int] = STREAMS
    threads: Sequence[int] = THREADS

    def cases(self) -> Iterator[Case]:
        """Those whose calls fit the areas, in the order of the table they make."""
        return (case for case in self.combinations() if case.bytes_in_flight <= AREA_BYTES)

    def combinations(self) -> Iterator[Case]:
        for threads, streams, opcode, batch, size in itertools.product(
            self.threads, self.streams, self.opcodes, self.batches, self.sizes
        ):
            yield Case(opcode, size, batch, streams, threads)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
