"""Reading sysfs, where anything may be missing, unreadable or not as expected."""

from __future__ import annotations

from pathlib import Path


def names(folder: Path) -> list[str]:
    """Sorted; none where there is no such folder."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def text(file: Path) -> str:
    """Empty where there is none: sysfs answers EINVAL for what does not apply now."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def integer(file: Path, default: int) -> int:
    found = text(file)
    return int(found) if found.removeprefix("-").isdecimal() else default
