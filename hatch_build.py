"""Builds transfer/copying.c into the wheel, or in place for an editable install, where
MOONTIDE_NATIVE=1 asks for it and there is a C compiler. Without, the package is Python alone: it
does the same, and needs 1.3–2 times as long for large values."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("transfer/copying.c")
LIBRARY = Path("transfer/_copying.so")
ASKED = "MOONTIDE_NATIVE"
FLAGS = ("-O3", "-Wall", "-Wextra", "-std=c11", "-shared", "-fPIC")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # any configuration
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get(ASKED) != "1":
            return
        root = Path(self.root)
        failure = build(root / SOURCE, root / LIBRARY)
        if failure:
            self.app.display_warning(f"{SOURCE} is left out: {failure}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(LIBRARY))


def build(source: Path, library: Path) -> str:
    """Why it could not be built; empty: it was. A process that has loaded the old one keeps it."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return f"there is no {compiler[0]}"
    partial = library.with_suffix(f".{os.getpid()}.partial")
    command = [*compiler, *FLAGS, "-o", str(partial), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        partial.unlink(missing_ok=True)
        return done.stderr.strip() or f"{compiler[0]} ended with {done.returncode}"
    partial.replace(library)
    return ""
