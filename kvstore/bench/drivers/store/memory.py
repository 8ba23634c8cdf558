"""Memory of a process, from /proc."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """Resident memory that is the process's own: no files, no shared memory."""
    return _status(pid)["RssAnon"]


def shared_bytes(pid: int, name: str) -> int:
    """Resident memory of the process's mappings of the memory file `name`."""
    total, counting = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            counting = f"memfd:{name}" in rest
        elif counting and first == "Rss:":
            total += int(rest.split()[0]) << 10
    return total


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) << 10 for name, _, rest in fields if rest.endswith(" kB")}
