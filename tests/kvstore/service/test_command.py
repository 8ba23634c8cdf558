from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import click
import msgspec
import pytest
from click.testing import CliRunner

from moontide.kvstore.errors import InvalidRequest, OutOfSpace
from moontide.kvstore.service import (
    CommandFailed,
    Process,
    Secret,
    SettingsError,
    Size,
    daemon_command,
)
from moontide.transfer.errors import SegmentUnavailable


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Annotated[str, msgspec.Meta(description="Name of this node")] = "a"
    dram: Annotated[Size, msgspec.Meta(description="Pool")] = Size(1 << 30)
    key: Annotated[Secret, msgspec.Meta(description="Secret key")] = Secret("hunter2")


def make(outcome: Exception | int = 0) -> tuple[click.Command, list[tuple[Sample, Process]]]:
    calls: list[tuple[Sample, Process]] = []

    def run(settings: Sample, process: Process) -> int:
        calls.append((settings, process))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return daemon_command("sample", Sample, run, "A sample daemon."), calls


def test_run_gets_settings_and_process(tmp_path: Path) -> None:
    command, calls = make(3)
    arguments = ["--dram", "2MiB", "--token-file", str(tmp_path / "t"), "--allowed-hosts", "a,b"]
    assert CliRunner().invoke(command, arguments).exit_code == 3
    [(settings, process)] = calls
    assert settings == Sample(dram=Size(2 << 20))
    assert process.token_file == tmp_path / "t"
    assert process.allowed_hosts == ("a", "b")
    assert process.token() == (tmp_path / "t").read_text().strip()


def test_help_shows_every_default_and_variable_of_the_code() -> None:
    command, _ = make()
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert 'Pool [default: "1GiB"; MOONTIDE_SAMPLE_DRAM]' in text
    assert "--log-level debug|info|warning|error" in text


def test_r60_print_config_shows_value_and_source_but_no_secret() -> None:
    command, calls = make()
    result = CliRunner().invoke(
        command, ["--print-config", "--node-id", "b"], env={"MOONTIDE_SAMPLE_KEY": "topsecret"}
    )
    assert result.exit_code == 0
    assert 'node_id = "b"  # flag --node-id' in result.output
    assert 'dram = "1GiB"  # default' in result.output
    assert 'key = "***"  # env MOONTIDE_SAMPLE_KEY' in result.output
    assert "topsecret" not in result.output
    assert "hunter2" not in CliRunner().invoke(command, ["--help"]).output
    assert calls == []


def test_print_config_is_a_config_file(tmp_path: Path) -> None:
    command, calls = make()
    shown = CliRunner().invoke(command, ["--print-config", "--dram", "8MiB"]).output
    file = tmp_path / "c.toml"
    file.write_text(shown)
    assert CliRunner().invoke(command, ["--config", str(file)]).exit_code == 0
    assert calls[0][0].dram == 8 << 20


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (OutOfSpace("asked 2GiB, available 1GiB"), 1, "asked 2GiB, available 1GiB"),
        (SegmentUnavailable("no memory"), 1, "no memory"),
        (CommandFailed("port 1 is taken"), 1, "port 1 is taken"),
        (SettingsError("bad dram"), 2, "bad dram"),
        (InvalidRequest("cluster 'zz': write memory"), 2, "cluster 'zz'"),
        (PermissionError(13, "Permission denied", "/data"), 1, "/data: Permission denied"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            1,
            "pip install 'moontide[engine]'",
        ),
        (ImportError("_ssl.so: undefined symbol"), 1, "a package is damaged"),
    ],
)
def test_an_expected_error_is_one_line(error: Exception, status: int, text: str) -> None:
    command, _ = make(error)
    result = CliRunner().invoke(command, [])
    assert result.exit_code == status
    assert text in result.stderr
    assert result.stderr.startswith("moontide sample: ")
    assert result.stderr.count("\n") == 1


def test_an_error_of_ours_is_not_hidden() -> None:
    command, _ = make(ZeroDivisionError("bug"))
    assert isinstance(CliRunner().invoke(command, []).exception, ZeroDivisionError)


def test_r76_an_unknown_flag_is_named_with_the_nearest() -> None:
    command, _ = make()
    result = CliRunner().invoke(command, ["--drma", "1MiB"])
    assert result.exit_code == 2
    assert "--drma" in result.stderr
    assert "--dram" in result.stderr


# -- the `moontide` command -----------------------------------------------------------


def moontide(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moontide.kvstore.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **environ},
        check=False,
    )


def test_help_lists_every_command_without_importing_any() -> None:
    code = (
        "import sys; from moontide.kvstore.cli import main;"
        "main(['--help'], standalone_mode=False);"
        "print([m for m in ('aiohttp', 'torch', 'uvloop') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert {"store", "conductor", "worker", "up", "demo", "admin"} <= set(result.stdout.split())
    assert result.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_named() -> None:
    result = moontide("stoer")
    assert result.returncode == 2
    assert "Usage: moontide [OPTIONS]" in result.stderr
    assert "stoer" in result.stderr


def test_a_missing_optional_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    arguments = ["--id", "w", "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token")]
    result = moontide("worker", *arguments, PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "pip install 'moontide[engine]'" in result.stderr
    assert "Traceback" not in result.stderr
