"""No step of the wall clock changes when anything ends."""

from __future__ import annotations

import re
from pathlib import Path

import moontide.kvstore as kvstore

WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\(|CLOCK_REALTIME|\bdatetime\b|\b(gm|local)time\(")


def test_the_wall_clock_is_read_for_days_alone() -> None:
    """That of the write budget, and that on which a certificate ends, which doctor tells."""
    root = Path(kvstore.__file__).parent
    readers = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        for line in path.read_text().splitlines()
        if WALL_CLOCK.search(line)
    ]
    assert readers == [
        "doctor/checks/tls.py: days = int((shown.expires - time.time()) // DAY_SECONDS)",
        "nvme/tier.py: return int(time.time() // DAY_SECONDS)",
    ]
