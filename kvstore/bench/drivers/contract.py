"""How a contestant's process is spoken to, and how it says that it failed.

stdin   one JSON request a line   {"do": OPERATION, …}
stdout  one JSON answer a line    {"ok": …} | {"error": TEXT}
"""

from __future__ import annotations

import importlib
from typing import Any


class Failed(Exception):
    """A contestant did not do what it was asked; the text says what."""


def foreign(module: str) -> Any:
    """A module of the interpreter this runs in. By name, since ours lacks it."""
    return importlib.import_module(module)
