"""What is measured by calls: one row each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..drivers.store.timing import ring_bytes

Checksums = Literal["on", "off"]
KiB = 1 << 10
MiB = 1 << 20
SIZES = (4 * KiB, 64 * KiB, MiB, 4 * MiB, 16 * MiB)
LARGE_BYTES = MiB
BATCH = 32
CALL_BYTES = 128 * MiB
"""About so many bytes a round, so that large values do not take all the time."""
MOST_CALLS = 400
LEAST_CALLS = 3
EXISTS_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a run may take and how much it may hold."""

    rounds: int = 5
    round_seconds: float = 0.25  # of timed calls, per contestant
    pool_bytes: int = 1536 * MiB

    @property
    def keep_bytes(self) -> int:
        """What a round leaves in the pool at most."""
        return self.pool_bytes * 2 // 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`ours`, `peers` and `limit` are the requests to each side; no `peers`: nobody else has it."""

    group: str
    name: str
    size_bytes: int
    batch: int
    ours: Mapping[str, Any]
    peers: Mapping[str, Any] | None
    limit: Mapping[str, Any] | None
    limit_name: str = "memcpy"
    note: str = ""
    checksums: Checksums = "on"  # of our client that puts

    @property
    def call_bytes(self) -> int:
        return self.size_bytes * self.batch

    @property
    def has_rate(self) -> bool:
        """A view moves no bytes, so bytes a second say nothing of it."""
        return self.group != "view" and self.call_bytes > 0

    def requests(self, budget: Budget) -> dict[str, Mapping[str, Any] | None]:
        """By side: ours, peers, limit."""
        shared = {
            "size_bytes": self.size_bytes,
            "batch": self.batch,
            "calls": max(LEAST_CALLS, min(MOST_CALLS, CALL_BYTES // max(self.call_bytes, 1))),
            "budget_seconds": budget.round_seconds,
            "keep_bytes": budget.keep_bytes,
        }
        sides = {"ours": self.ours, "peers": self.peers, "limit": self.limit}
        return {side: asked and {**shared, **asked} for side, asked in sides.items()}


def area_bytes(cases: Sequence[Case]) -> int:
    """Source memory that a contestant needs for all of them."""
    return max((ring_bytes(case.size_bytes, case.batch) for case in cases), default=MiB)


def call_cases(sizes: Sequence[int] = SIZES) -> Iterator[Case]:
    """In the order of the table they make."""
    for batch in (1, BATCH):
        for size in sizes:
            yield from _copying(size, batch)
    yield from _views(max(sizes))
    yield from _cold(max(sizes))


def _copying(size: int, batch: int) -> Iterator[Case]:
    """Puts and gets that copy, one value or many."""
    yield _alike("put", "put", size, batch)
    if size >= LARGE_BYTES:
        yield _alike("put, checksums off", "put", size, batch, checksums="off")
    yield _alike("get, located", "get", size, batch)
    yield _alike("get, one round trip", "get_unseen", size, batch)


def _alike(
    name: str, operation: str, size: int, batch: int, *, checksums: Checksums = "on"
) -> Case:
    """The same is asked of all sides."""
    asked = {"do": operation}
    return Case(
        group="batch" if batch > 1 else "single",
        name=f"batch {name}" if batch > 1 else name,
        size_bytes=size,
        batch=batch,
        ours=asked,
        peers=asked,
        limit=asked,
        checksums=checksums,
    )


def _views(size: int) -> Iterator[Case]:
    for name, operation in (("one round trip", "view"), ("under a held ticket", "view_held")):
        yield Case(
            group="view",
            name=f"view, {name}",
            size_bytes=size,
            batch=1,
            ours={"do": operation},
            peers={"do": "get"},
            limit={"do": "round_trip"},
            limit_name="raw unix socket",
            note="peers copy: they have no views",
        )


def _cold(size: int) -> Iterator[Case]:
    for what in ("put", "get"):
        yield Case(
            group="cold",
            name=f"{what}, nothing mapped yet",
            size_bytes=size,
            batch=1,
            ours={"do": f"cold_{what}"},
            peers=None,
            limit={"do": what},
            limit_name="memcpy, warm",
            note="first call of a new client",
        )


def exists_case(among: int) -> Case:
    asked = {"do": "exists", "among": among}
    return Case(
        group="exists",
        name=f"exists among {among}",
        size_bytes=0,
        batch=EXISTS_KEYS,
        ours=asked,
        peers=asked,
        limit={"do": "round_trip"},
        limit_name="raw unix socket",
    )
