"""What the scheduler asks about blocks that were found: load them, or compute them?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .sequence import LoadEstimate, Sequence


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """`blocks` are loaded, the `num_forgone` found ones after them computed. Without an estimate
    nothing but time without progress ends the load."""

    blocks: range
    num_forgone: int = 0
    estimate: LoadEstimate | None = None


class LoadChooser(Protocol):
    """What the scheduler asks when it looks for a request's place."""

    def choose(self, sequence: Sequence, load: range, *, beside_batch: bool) -> LoadDecision:
        """Of `load`, which were found and are not on the device."""

    def admitted(self, decision: LoadDecision) -> None:
        """It is being done."""


class TakeAll:
    """Whatever was found is loaded."""

    def choose(self, sequence: Sequence, load: range, *, beside_batch: bool) -> LoadDecision:
        return LoadDecision(load)

    def admitted(self, decision: LoadDecision) -> None:
        pass
