"""`moontide doctor` on the machine that runs the tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.doctor.checks.kernel import unmet
from moontide.kvstore.doctor.cuda import find_cuda
from moontide.kvstore.doctor.trials import PIECE_BYTES, LocalTrials


def run(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moontide.kvstore.cli", "doctor", *flags]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOONTIDE_")} | environ
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def free_ports() -> list[str]:
    """Flags with which a store would find its ports free."""
    return ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


def by_check(report: dict[str, Any]) -> dict[str, Any]:
    return {finding["check"]: finding for finding in report["findings"]}


def test_json_says_each_thing_and_changes_nothing(tmp_path: Path) -> None:
    data_dir = tmp_path / "data" / "store"
    small = ("--dram", "1MiB", "--max-entries", "1000", "--max-clients", "8")
    done = run("--data-dir", str(data_dir), *small, *free_ports(), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), done.stderr
    failed = [finding for finding in report["findings"] if finding["status"] == "fail"]
    assert report["ok"] == (failed == [])
    for finding in report["findings"]:
        assert finding["value"]
        assert finding["needed"]
        assert bool(finding["fix"]) == (finding["status"] != "ok")
    found = by_check(report)
    assert found["memory"]["status"] == found["open files"]["status"] == "ok"
    assert "GB/s" in found["disk speed"]["value"]
    assert list(tmp_path.iterdir()) == []


def test_more_than_there_is_ends_with_status_one_naming_the_fix(tmp_path: Path) -> None:
    asked = ("--dram", "4096GiB", "--segment", "64GiB")
    done = run("--data-dir", str(tmp_path), *asked, *free_ports())
    assert done.returncode == 1
    assert "fail memory: lower --dram" in done.stdout


def test_it_checks_the_store_that_file_and_environment_describe(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "store.toml"
        file.write_text(
            f'data_dir = "{tmp_path}"\nadmin = "127.0.0.1:{port}"\nlog_level = "debug"\n'
        )
        done = run(
            "--config", str(file), "--listen", "127.0.0.1:0", "--json", MOONTIDE_STORE_DRAM="3MiB"
        )
    found = by_check(json.loads(done.stdout))
    assert found["port --admin"]["status"] == "fail"
    assert str(port) in found["port --admin"]["value"]
    assert "pool of 3MiB" in found["memory"]["needed"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--dram", "0"), "--dram='0': 0 is below the least allowed, 4KiB"),
        (("--dram", "32KiB"), "lower --inline or raise --dram"),
        (("--segment", "32KiB"), "lower --inline or raise --segment"),
        (("--nvme", "1MiB"), "NVMe"),
    ],
)
def test_r76_settings_that_cannot_be_end_in_one_line(flags: tuple[str, ...], named: str) -> None:
    done = run(*flags)
    assert done.returncode != 0
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_r76_a_typo_fails_by_name() -> None:
    done = run(MOONTIDE_STORE_DRMA="1GiB")
    assert done.returncode == 2
    assert "MOONTIDE_STORE_DRMA" in done.stderr


@pytest.mark.parametrize("cluster", ["abc", "file:", "etcd:host", "etcd://host:port"])
def test_a_cluster_that_the_store_refuses_is_refused(cluster: str) -> None:
    done = run("--cluster", cluster)
    assert done.returncode == 2
    assert cluster.removeprefix("etcd://") in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_of_the_cluster_is_not_made(tmp_path: Path) -> None:
    run("--cluster", f"file:{tmp_path}/cluster", "--data-dir", str(tmp_path), *free_ports())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_nobody_may_write_to_is_told() -> None:
    done = run("--data-dir", "/proc/store", "--nvme", "1GiB", *free_ports(), "--json")
    found = by_check(json.loads(done.stdout))
    assert done.returncode == 1, done.stderr
    assert (found["data dir"]["status"], found["disk speed"]["status"]) == ("fail", "warn")
    assert "/proc" in found["data dir"]["fix"]


def test_trials_work_here_and_leave_nothing(tmp_path: Path) -> None:
    trials = LocalTrials()
    assert (trials.seal_memory(), trials.watch_process(), trials.write_to(tmp_path)) == ("", "", "")
    speed = trials.disk_speed(tmp_path, 2 * PIECE_BYTES)
    assert speed.num_bytes == 2 * PIECE_BYTES
    assert min(speed.written, speed.read) > 0
    assert list(tmp_path.iterdir()) == []
    assert trials.write_to(tmp_path / "nowhere") == "No such file or directory"


def test_a_measurement_never_has_a_name_on_the_disk(tmp_path: Path) -> None:
    """So that neither Ctrl-C nor kill -9 leaves one."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(LocalTrials().disk_speed, tmp_path, 16 * PIECE_BYTES)
        seen = set()
        while not running.done():
            seen |= set(os.listdir(tmp_path))
    assert running.result().num_bytes > 0
    assert seen == set()


def test_cuda_is_looked_for_without_torch() -> None:
    code = (
        "import sys; from moontide.kvstore.doctor.cuda import find_cuda; find_cuda(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
    found = find_cuda()
    assert found.num_devices > 0 or found.reason


@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        ("click>=8.1", []),
        ("click>=999", ["click is"]),
        ("no-such-package>=1", ["no-such-package is missing"]),
        ('torch>=999; extra == "engine"', []),
    ],
)
def test_packages_are_compared_with_what_is_required(requirement: str, told: list[str]) -> None:
    found = list(unmet([requirement]))
    assert len(found) == len(told)
    assert all(text.startswith(start) for text, start in zip(found, told, strict=True))
