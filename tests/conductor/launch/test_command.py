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


@pytest.mark.parametrize("model", ["nowhere/model.gguf", "abc"])
def test_a_missing_model_is_refused_before_anything_starts(temporary: Path, model: str) -> None:
    result = CliRunner().invoke(up, ["--model", model])
    assert result.exit_code == 2
    assert f"model={model}: there is no such file or directory" in result.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_place_of_the_run_directory_is_refused(temporary: Path, below: str) -> None:
    file = temporary / "file"
    file.touch()
    result = CliRunner().invoke(up, ["--run-dir", str(file / below)])
    assert result.exit_code == 2
    assert f"run_dir={file / below}: a file is in the way" in result.stderr
