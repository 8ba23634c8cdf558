"""Which tier a directory holds: a name in a file of its own, made with the tier.

Regions and index carry it too. So an index or regions that came from another tier's directory are
told apart from ours, whichever of them is lost."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from .log_format import TIER_BYTES
from .storage import DISK_ERRORS, Storage

_log = logging.getLogger(__name__)
IDENTITY_FILE = "tier-id"
_DRAFT = IDENTITY_FILE + ".draft"
OWN_FILES = (IDENTITY_FILE, _DRAFT)


def read_identity(directory: Path) -> bytes | None:
    """None: the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        with (directory / IDENTITY_FILE).open("rb") as file:
            tier = bytes.fromhex(file.read(4 * TIER_BYTES).decode())
        if len(tier) == TIER_BYTES:
            return tier
    return None


def write_identity(directory: Path, tier: bytes, storage: Storage) -> None:
    """On a full disk it is left to the next start."""
    draft = directory / _DRAFT
    try:
        draft.write_text(f"{tier.hex()}\n")
        storage.rename(draft, directory / IDENTITY_FILE)
    except DISK_ERRORS as error:
        _log.warning("nvme_identity_unwritten path=%s reason=%s", draft, error)
