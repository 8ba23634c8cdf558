"""Has an index looked at in a child process: a damaged LMDB file can end the one that reads it."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .index import DATA_FILE

MIN_SECONDS = 20.0
SECONDS_PER_BYTE = 30 / 512e6
"""At 500 bytes an entry: 30 s for each 10^6."""


class Verdict(enum.IntEnum):
    """Exit status of the child. None is 0 or 1: what a child that did not look might end with."""

    SOUND = 2
    DAMAGED = 3
    OTHER_VERSION = 4
    ABSENT = 5


Probe = Callable[[Path], Verdict]


def probe(directory: Path) -> Verdict:
    """What the child (index_scan.py) says. One that dies, or takes too long, found damage."""
    file = directory / DATA_FILE
    if not file.is_file():
        return Verdict.ABSENT
    command = [sys.executable, "-m", f"{__package__}.index_scan", str(directory)]
    try:
        done = subprocess.run(
            command,
            timeout=MIN_SECONDS + file.stat().st_size * SECONDS_PER_BYTE,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Verdict.DAMAGED
    return Verdict(done.returncode) if done.returncode in list(Verdict) else Verdict.DAMAGED
