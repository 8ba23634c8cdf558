"""The child of a probe: reads an index as a whole, and may die of it.

python -m moontide.kvstore.nvme.index_scan DIRECTORY     exit status: see Verdict
"""

from __future__ import annotations

import sys
from pathlib import Path

import lmdb

from ..errors import Corrupt
from .index import DATA_FILE, NvmeIndex
from .log_format import UnknownVersion
from .probe import Verdict
from .storage import Storage


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
