"""What a benchmark starts ends with it, however that ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ...waiting import wait_until

SCRIPT = """
import sys
from pathlib import Path
from moontide.engine_adapters.builtin.bench.processes import running_cluster

with running_cluster(Path(sys.argv[1]), "--model", sys.argv[2], "--dram", "64MiB"):
    sys.stdin.read()
"""


def test_a_killed_benchmark_leaves_no_cluster(tmp_path: Path, tiny_model_dir: Path) -> None:
    bench = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(tiny_model_dir)])
    try:
        children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        wait_until(children.read_text)
        cluster = int(children.read_text())
        assert is_running(cluster)
    finally:
        bench.kill()
        bench.wait()
    wait_until(lambda: not is_running(cluster), 60.0)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
