from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from moontide.conductor.launch.plan import Plan, make_plan
from moontide.conductor.launch.ports import Ports
from moontide.conductor.launch.settings import UpSettings
from moontide.conductor.launch.state import ClusterState, ConductorState, write_state
from moontide.kvstore.service import SettingsError, Size

PORTS = Ports(7400, ((7420, 7421),), (7440, 7441))


def plan(run_dir: Path, **settings: object) -> Plan:
    chosen = UpSettings(both=2, **settings)  # type: ignore[arg-type]
    return make_plan(chosen, run_dir=run_dir, token_file=run_dir / "token", ports=PORTS)


def flags(arguments: tuple[str, ...]) -> dict[str, str]:
    assert len(arguments) % 2 == 1
    return dict(zip(arguments[1::2], arguments[2::2], strict=True))


def test_every_process_gets_what_it_needs_to_find_the_others(tmp_path: Path) -> None:
    made = plan(tmp_path, dram=Size(64 << 20), model="m.gguf")
    store, *workers, conductor = made.specs()
    assert [spec.name for spec in made.specs()] == ["node-0", "worker-0", "worker-1", "conductor"]
    assert flags(store.arguments)["--dram"] == "64MiB"
    assert flags(store.arguments)["--admin"] == "127.0.0.1:7421"
    socket = flags(store.arguments)["--socket"]
    for worker in workers:
        assert flags(worker.arguments)["--store"] == f"unix:{socket}"
        assert flags(worker.arguments)["--model"] == "m.gguf"
    assert flags(conductor.arguments)["--listen"] == "127.0.0.1:7400"
    for spec in made.specs():
        assert flags(spec.arguments)["--cluster"] == f"file:{tmp_path}/cluster"
        assert flags(spec.arguments)["--token-file"] == f"{tmp_path}/token"
        assert spec.ready_url.endswith("/readyz")


def test_a_run_directory_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match="exceeds 107 bytes; give a shorter --run-dir or TMPDIR"
    ):
        plan(tmp_path / ("x" * 120))


def test_the_state_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    first = ClusterState(ConductorState("http://a", 1), "/token", (), ())
    write_state(path, first)
    second = ClusterState(ConductorState("http://a", 2), "/token", (), ())
    write_state(path, second)
    assert msgspec.json.decode(path.read_bytes(), type=ClusterState) == second
    assert os.listdir(path.parent) == ["state.json"]
    shown = msgspec.json.decode(path.read_bytes())
    assert set(shown) == {"conductor", "token_file", "nodes", "workers"}
