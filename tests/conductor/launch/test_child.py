from __future__ import annotations

from pathlib import Path

import pytest

from moontide.conductor.launch.child import Child, ChildSpec


def test_modules_of_the_working_directory_are_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "json", "logging", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the working directory')")
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    child = Child(ChildSpec("one", "nothing", ("--version",), "http://none", log, {}))
    assert child.wait(30)
    assert log.read_text().startswith("moontide, version ")
