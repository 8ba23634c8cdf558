"""The link between two nodes is cut under load, in network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_rounds(model: Path, *, first: int, count: int) -> None:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    alone = [*as_root, "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    folder = Path(tempfile.mkdtemp(prefix="mt-"))  # pytest's paths can be too long for a socket
    try:
        done = subprocess.run(
            [
                *("unshare", *alone, sys.executable, "-m", "tests.e2e.partitioned"),
                *(str(folder), str(model), str(first), str(count)),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60 + 60 * count,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_one_round(tiny_model_dir: Path) -> None:
    run_rounds(tiny_model_dir, first=0, count=1)


@pytest.mark.soak
def test_ten_rounds(tiny_model_dir: Path) -> None:
    run_rounds(tiny_model_dir, first=1, count=10)
