from pathlib import Path

from moontide.engine_adapters.builtin.worker.memory import available_bytes


def test_the_lesser_of_machine_and_control_group_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 4096 kB\nMemAvailable:    2048 kB\n")
    assert available_bytes(meminfo, tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 2 << 20
    (tmp_path / "memory.max").write_text("1048576\n")
    assert available_bytes(meminfo, tmp_path) == 1048576 - 1000
