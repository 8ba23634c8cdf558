"""Whether and when a process that died is started again."""

from __future__ import annotations

from dataclasses import dataclass

MAX_QUICK_DEATHS = 5
QUICK_SECONDS = 30.0
_FIRST_DELAY_SECONDS = 0.1
_GROWTH = 4
_MAX_DELAY_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Restart:
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    deaths: int


class RestartPolicy:
    """Growing delays while a process keeps dying soon after its start; a life longer than
    QUICK_SECONDS forgets them."""

    def __init__(self) -> None:
        self._quick_deaths = 0

    def on_death(self, lived_s: float) -> Restart | GiveUp:
        self._quick_deaths = self._quick_deaths + 1 if lived_s < QUICK_SECONDS else 1
        if self._quick_deaths > MAX_QUICK_DEATHS:
            return GiveUp(self._quick_deaths)
        delay_s = _FIRST_DELAY_SECONDS * _GROWTH ** (self._quick_deaths - 1)
        return Restart(min(delay_s, _MAX_DELAY_SECONDS))
