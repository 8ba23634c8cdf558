"""One case, asked of every contestant in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..rounds import LIMIT, OURS, Answers, Contestants
from .cases import Budget, Case
from .peers import PEERS


def side(name: str) -> str:
    return name if name in (OURS, LIMIT) else "peers"


def measure(contestants: Contestants, case: Case, budget: Budget) -> Answers:
    """A round to warm up, then those that count."""
    requests = case.requests(budget)

    def request(name: str, _: int) -> Mapping[str, Any] | None:
        too_large = name in PEERS and case.call_bytes > PEERS[name].most_call_bytes
        return None if too_large else requests[side(name)]

    answers = contestants.rounds(budget.rounds + 1, request)
    return {name: given[1:] for name, given in answers.items()}
