from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.conductor.launch.command import demo, up
from moontide.conductor.launch.ports import HOST


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made, on a path too long for sockets."""
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return folder


def test_a_start_that_fails_early_leaves_no_directory(temporary: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        result = CliRunner().invoke(up, ["--port-base", str(port)])
    assert result.exit_code == 1
    assert f"port {port} on {HOST} is taken" in result.stderr
    assert list(temporary.iterdir()) == []


def test_a_temporary_path_too_long_for_sockets_is_named(temporary: Path) -> None:
    result = CliRunner().invoke(demo, [])
    assert result.exit_code == 2
    assert "TMPDIR" in result.stderr
    assert list(temporary.iterdir()) == []
