"""The rules of CI itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("1", 1)])
def test_a_skip_is_a_failure_in_ci_only(tmp_path: Path, ci: str, status: int) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\ndef test_one():\n    pytest.skip('no such thing here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert ("which CI does not allow" in done.stdout) == bool(ci)
