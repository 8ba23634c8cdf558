"""Writes the pages that are made from the code: `make docs`. With `--check` it writes nothing and
fails naming the pages that differ; a test runs that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from make_commands import commands_text
from make_limits import limits_text
from make_metrics import metrics_text
from make_settings import settings_text

PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_text,
    "commands.md": commands_text,
    "metrics.md": metrics_text,
    "limits.md": limits_text,
}


def main(arguments: list[str]) -> int:
    folder = Path(__file__).parent
    stale = []
    for name, text in PAGES.items():
        path, wanted = folder / name, text()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(wanted, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"{' '.join(stale)}: not what the code says, run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
