"""Which tier a directory holds, and how far its log has come: 40 bytes in a file of their own.

    magic, tier, sequence of the next batch, xxh3-64 of these

Regions and index name the tier too, so what came from another tier's directory is told apart from
ours. The file is overwritten after each batch, without a sync: it may be behind the log, never
ahead. So when the index is lost, it tells whether the log still has its end.
"""

from __future__ import annotations

import logging
import os
import secrets
import struct
from pathlib import Path

from xxhash import xxh3_64_intdigest

from .log_format import TIER_BYTES
from .storage import DISK_ERRORS, Storage

logger = logging.getLogger(__name__)
IDENTITY_FILE = "tier"
_MAGIC = b"MTTIER\0\1"
_BODY = struct.Struct(f"<8s{TIER_BYTES}sQ")
_CHECKSUM = struct.Struct("<Q")


class Identity:
    """Opens or makes the file. `tier` None: it did not say; call `name` then. One thread."""

    def __init__(self, directory: Path, storage: Storage) -> None:
        """Raises one of DISK_ERRORS."""
        self._storage = storage
        path = directory / IDENTITY_FILE
        if path.is_symlink() or (path.exists() and not path.is_file()):
            storage.rename(path, path.with_name(f"{path.name}.foreign-{secrets.token_hex(4)}"))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.tier: bytes | None = None
        self.sequence: int | None = None  # at least so far the log had come
        data = os.pread(self._file, _BODY.size + _CHECKSUM.size, 0)
        if len(data) == _BODY.size + _CHECKSUM.size and data[_BODY.size :] == _sum(data):
            magic, tier, sequence = _BODY.unpack_from(data)
            if magic == _MAGIC:
                self.tier, self.sequence = tier, sequence

    def name(self, tier: bytes | None) -> bytes:
        """This tier's name: what it is known by, else `tier`, else a new one."""
        self.tier = self.tier or tier or secrets.token_bytes(TIER_BYTES)
        return self.tier

    def advance(self, sequence: int) -> None:
        """The log has come so far. A disk that does not take it leaves an older number."""
        assert self.tier is not None
        body = _BODY.pack(_MAGIC, self.tier, sequence)
        try:
            self._storage.overwrite(self._file, body + _sum(body))
        except DISK_ERRORS as error:
            logger.warning("nvme_identity_unwritten reason=%s", error)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _sum(data: bytes) -> bytes:
    return _CHECKSUM.pack(xxh3_64_intdigest(data[: _BODY.size]))
