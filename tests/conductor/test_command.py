"""`moontide conductor` as a user starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from moontide.conductor.api_keys import read_api_keys
from moontide.kvstore.service import SettingsError

from ..waiting import within

MOONTIDE = Path(sys.executable).with_name("moontide")


def command(tmp_path: Path, *flags: str) -> list[str]:
    options = {
        "--listen": "127.0.0.1:0",
        "--cluster": f"file:{tmp_path / 'cluster'}",
        "--token-file": str(tmp_path / "token"),
    }
    options |= dict(zip(flags[::2], flags[1::2], strict=True))
    return [str(MOONTIDE), "conductor", *(part for pair in options.items() for part in pair)]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("MOONTIDE_")}


def test_it_starts_reports_its_port_and_ends_on_sigterm(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path), stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if " ready " in line)
        address = ready.split("listen=")[1].split()[0]
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as response:
            assert response.status == 200
        with within(10.0):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--cluster", "memory"), "cluster is memory"),
        (("--ttft-slo", "-1"), "ttft-slo"),
        (("--api-keys-file", "/does/not/exist"), "/does/not/exist"),
        (("--listen", "TAKEN"), "the port is taken"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_r76_wrong_settings_end_in_one_clear_line(
    tmp_path: Path, flags: tuple[str, str], text: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = [flag.replace("TAKEN", f"127.0.0.1:{port}") for flag in flags]
        result = subprocess.run(
            command(tmp_path, *given),
            capture_output=True,
            text=True,
            timeout=30,
            env=environment(),
            check=False,
        )
    assert result.returncode in (1, 2)
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_api_keys_are_read_and_malformed_ones_named_by_line_only(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n\nkey-number-one\n  key-number-two  \n")
    assert read_api_keys(path) == ["key-number-one", "key-number-two"]
    for text, message in [("# none\n", "holds no key"), ("good-key-1\ntwo words\n", "line 2")]:
        path.write_text(text)
        with pytest.raises(SettingsError, match=message) as refused:
            read_api_keys(path)
        assert "two words" not in str(refused.value)
    with pytest.raises(SettingsError, match="keys-of-nobody is no file: give one with a key"):
        read_api_keys(tmp_path / "keys-of-nobody")
