"""What one client saw; read it at any time, it only grows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ClientCounters:
    corrupt: int = 0  # entries or extents whose bytes did not match their checksum
    lost_races: int = 0  # copies thrown away because the entry changed meanwhile
    located_hits: int = 0  # values read without asking the daemon
    late_jobs: int = 0  # results that came after their job had ended
