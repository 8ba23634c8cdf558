"""Reading memory limits from cgroup files of either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.transfer import memory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    return tmp_path


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_machine_sets_the_bound_without_a_cgroup_limit(root: Path) -> None:
    write_group(root / "sys/fs/cgroup", memory__max="max\n", memory__current="5\n", memory__stat="")
    assert memory.available_memory(root) == (8000 * 1024, "MemAvailable of this machine")


def test_tightest_group_of_version_two_sets_the_bound(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/pod/engine\n")
    stat = "anon 10\ninactive_file 1000\n"
    write_group(
        root / "sys/fs/cgroup/pod/engine",
        memory__max="900000\n",
        memory__current="500000\n",
        memory__stat=stat,
    )
    write_group(
        root / "sys/fs/cgroup/pod",
        memory__max="300000\n",
        memory__current="200000\n",
        memory__stat=stat,
    )
    assert memory.available_memory(root) == (101_000, "memory limit of cgroup /pod")


def test_group_of_version_one_sets_the_bound(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("4:memory:/job\n1:cpu:/\n0::/\n")
    write_group(
        root / "sys/fs/cgroup/memory/job",
        memory__limit_in_bytes="70000\n",
        memory__usage_in_bytes="60000\n",
        memory__stat="total_inactive_file 500\n",
    )
    assert memory.available_memory(root) == (10_500, "memory limit of cgroup /job")


def test_full_group_leaves_nothing(root: Path) -> None:
    write_group(root / "sys/fs/cgroup", memory__max="10\n", memory__current="50\n", memory__stat="")
    assert memory.available_memory(root).available_bytes == 0
