"""What the scheduler asks about blocks that were found: load them, or compute them?"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from .sequence import LoadEstimate, Sequence


class Company(enum.Enum):
    """Who else would wait for a step that waits for a load."""

    NOBODY = "nobody"
    NEWCOMERS = "newcomers"  # none of them is in the batch yet
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """`blocks` are loaded, the `num_forgone` found ones after them computed: while they are, when
    it `overlaps`, else afterwards. Without an estimate nothing but time without progress ends the
    load."""

    blocks: range
    num_forgone: int = 0
    estimate: LoadEstimate | None = None
    overlaps: bool = False


class LoadChooser(Protocol):
    """What the scheduler asks when it looks for a request's place."""

    def choose(self, sequence: Sequence, load: range, company: Company) -> LoadDecision:
        """Of `load`, which were found and are not on the device."""

    def admitted(self, decision: LoadDecision) -> None:
        """It is being done."""


class TakeAll:
    """Whatever was found is loaded; nobody waits for another node."""

    def choose(self, sequence: Sequence, load: range, company: Company) -> LoadDecision:
        found = sequence.found
        is_near = found is not None and all(found.source(block).is_local for block in load)
        return LoadDecision(load, overlaps=is_near and company is not Company.BATCH)

    def admitted(self, decision: LoadDecision) -> None:
        pass
