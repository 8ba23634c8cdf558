"""Recorded sysfs trees (data/topology): files with their text, and links, below a root."""

from __future__ import annotations

import json
from pathlib import Path

_TREES = Path(__file__).parent / "data" / "topology"


def record_tree(root: Path, name: str) -> Path:
    tree = json.loads((_TREES / f"{name}.json").read_text(encoding="utf-8"))
    for path, content in tree["files"].items():
        _made(root / path).write_text(f"{content}\n", encoding="utf-8")
    for path, target in tree["links"].items():
        _made(root / path).symlink_to(target)
    return root


def _made(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
