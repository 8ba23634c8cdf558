"""The deployment files say what the code understands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"
DAEMONS = ("store", "worker", "conductor")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MOONTIDE_")}
    return subprocess.run(
        [sys.executable, "-m", "moontide.kvstore.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean,
        check=False,
    )


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_example_file_loads(daemon: str) -> None:
    file = DEPLOY / "config" / f"{daemon}.toml"
    done = run(daemon, "--config", str(file), "--print-config")
    assert done.returncode == 0, done.stderr
    assert f"# file {file}" in done.stdout


@pytest.mark.parametrize("daemon", DAEMONS)
def test_every_unit_starts_its_daemon_with_its_file(daemon: str) -> None:
    unit = (DEPLOY / "systemd" / f"moontide-{daemon}.service").read_text()
    assert f"moontide {daemon} --config /etc/moontide/{daemon}.toml" in unit
