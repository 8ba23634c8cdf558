"""One daemon a directory, and a file that says how to reach it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moontide.kvstore.daemon.data_dir import DataDir, StoreState, read_state
from moontide.kvstore.errors import Conflict, StoreUnavailable

STATE = StoreState("/run/s.sock", None, "127.0.0.1:1", 1, "node/1/00")


def test_the_second_user_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    first = DataDir(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Conflict, match=rf"{tmp_path}/data .* pid {os.getpid()};"):
        DataDir(tmp_path / "data")
    assert sorted(tmp_path.rglob("*")) == before
    first.close()
    DataDir(tmp_path / "data").close()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from moontide.kvstore.daemon.data_dir import DataDir;"
        "DataDir(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, tmp_path], timeout=30, check=False)
    assert ended.returncode == -9
    DataDir(tmp_path).close()


def test_the_state_is_there_while_the_daemon_is(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    directory = DataDir(tmp_path)
    directory.publish(STATE)
    assert read_state(tmp_path) == STATE
    directory.close()
    assert read_state(tmp_path) is None


def test_r63_a_full_disk_is_no_obstacle_to_the_lock_and_named_by_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    DataDir(tmp_path).close()
    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    directory = DataDir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"store\.json: No space left on device; free"):
        directory.publish(STATE)
    directory.close()
