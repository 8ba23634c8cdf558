"""What the tier asks of its writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .types import Done, NvmeEntry, NvmeWrite


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    write: NvmeWrite
    done: Done

    @property
    def num_bytes(self) -> int:
        return sum(extent.nbytes for extent in self.write.extents)


@dataclass(frozen=True, slots=True, eq=False)
class Drop:
    """`at` (region, ordinal): only while the record stands there."""

    entries: Sequence[bytes]
    done: Done
    at: tuple[int, int] | None = None

    num_bytes = 0


@dataclass(frozen=True, slots=True, eq=False)
class Clear:
    """`namespace` None: everything."""

    namespace: str | None
    done: Done

    num_bytes = 0


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """Done once all before it is durable; True if all of it succeeded since the last flush."""

    done: Done

    num_bytes = 0


Operation = Write | Drop | Clear | Flush


@dataclass(slots=True)
class Outcome:
    """What came of a group of operations, for the thread that uses the tier. What a later group
    stores has at least generation `next_sequence`."""

    results: list[tuple[Operation, bool]] = field(default_factory=list)
    stored: list[NvmeEntry] = field(default_factory=list)
    removed: list[NvmeEntry] = field(default_factory=list)
    next_sequence: int = 0
