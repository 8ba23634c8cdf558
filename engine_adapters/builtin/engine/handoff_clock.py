"""How long hand-offs that are received here may wait for token 1."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sequence import Sequence


@dataclass(slots=True)
class HandoffClock:
    """Counts from the moment their pages were reserved; who only queues has no limit here. Pure:
    `now` is passed in (monotonic seconds)."""

    timeout_s: float
    _deadlines: dict[Sequence, float] = field(default_factory=dict)

    def begin(self, sequence: Sequence, now: float) -> bool:
        """False: its time runs already (it was preempted, and has pages again)."""
        if sequence in self._deadlines or sequence.first_token is not None:
            return False
        self._deadlines[sequence] = now + self.timeout_s
        return True

    def end(self, sequence: Sequence) -> None:
        """Token 1 is there, or nobody waits for it any more."""
        self._deadlines.pop(sequence, None)

    def expired(self, now: float) -> list[Sequence]:
        return [sequence for sequence, deadline in self._deadlines.items() if deadline <= now]

    def seconds_to_deadline(self, now: float) -> float:
        return max(0.0, min(self._deadlines.values(), default=float("inf")) - now)
