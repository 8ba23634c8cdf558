"""What users install: one top-level name, every file, a version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPONENTS = ("kvstore", "conductor", "transfer", "engine_adapters", "kernels")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built through it."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "MOONTIDE_NATIVE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


def tree() -> set[str]:
    """Files git knows in the components, as `component/…`."""
    done = subprocess.run(
        ["git", "ls-files", *COMPONENTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line for line in done.stdout.splitlines() if (ROOT / line).exists()}


def test_the_wheel_has_every_file_and_one_top_level_name(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"moontide"}
    packed = {name.removeprefix("moontide/") for name in names}
    assert tree() - packed == set()
    assert {name for name in packed if "__pycache__" in name or name == "__init__.py"} == set()


def test_the_wheel_has_the_native_copies_and_the_sdist_only_their_source(built: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    [wheel] = built.glob("*.whl")
    assert "moontide/transfer/_copying.so" in zipfile.ZipFile(wheel).namelist()
    assert "-py3-none-linux_" in wheel.name
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "transfer/copying.c"} <= names
    assert "transfer/_copying.so" not in names


def test_the_sdist_can_be_tested_and_deployed(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "tests/test_packaging.py"} <= names
    assert any(name.startswith("deploy/") for name in names)


def test_metadata_names_the_extras_and_commands(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
        [name] = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        entry_points = archive.read(name).decode()
    assert "Provides-Extra: engine" in text
    assert "Requires-Dist: torch" in text
    for line in text.splitlines():
        if line.startswith("Requires-Dist: torch"):
            assert "extra == 'engine'" in line
    assert "moontide = moontide.kvstore.cli:main" in entry_points


def test_every_command_loads() -> None:
    found = metadata.entry_points(group="moontide.commands")
    assert {"store", "admin", "conductor", "up", "demo", "worker"} <= set(found.names)
    for entry_point in found:
        assert callable(entry_point.load()), entry_point.name


def test_constraints_pin_all_that_is_declared() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, separator, version = line.partition("==")
        assert separator, line
        assert "+" not in version, line
        assert canonicalize_name(name) not in pinned, line
        pinned[canonicalize_name(name)] = version
    for text in metadata.requires("moontide") or []:
        requirement = Requirement(text)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text
