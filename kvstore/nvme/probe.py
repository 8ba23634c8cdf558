"""Looks at an index from a process of its own: a damaged LMDB file can end the one that reads it.

python -m moontide.kvstore.nvme.probe DIRECTORY     exit status: see Verdict
"""

from __future__ import annotations

import enum
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb

from ..errors import Corrupt
from .index import DATA_FILE, NvmeIndex
from .log_format import UnknownVersion
from .storage import Storage

MIN_SECONDS = 20.0
SECONDS_PER_BYTE = 30 / 512e6
"""At 500 bytes an entry: 30 s for each 10^6."""


class Verdict(enum.IntEnum):
    SOUND = 0
    DAMAGED = 3
    OTHER_VERSION = 4
    ABSENT = 5


Probe = Callable[[Path], Verdict]


def probe(directory: Path) -> Verdict:
    """Scans the index in a child. One that dies, or takes too long, found damage."""
    file = directory / DATA_FILE
    if not file.is_file():
        return Verdict.ABSENT
    command = [sys.executable, "-m", __spec__.name, str(directory)]
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


def scan(directory: Path) -> Verdict:
    """Reads the whole index here. May crash on a damaged file."""
    file = directory / DATA_FILE
    if not file.is_file():
        return Verdict.ABSENT
    size = file.stat().st_size
    try:
        index = NvmeIndex(directory, size, Storage(), readonly=True)
        try:
            index.check_integrity()
        finally:
            index.close()
    except (UnknownVersion, lmdb.VersionMismatchError):
        return Verdict.OTHER_VERSION
    except (lmdb.Error, Corrupt):
        return Verdict.DAMAGED
    return Verdict.SOUND


if __name__ == "__main__":
    sys.exit(scan(Path(sys.argv[1])))
