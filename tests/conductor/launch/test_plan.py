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

PORTS = Ports(7400, ((7420, 7421), (7422, 7423)), (7440, 7441, 7442, 7443))


def plan(run_dir: Path, **settings: object) -> Plan:
    chosen = UpSettings(nodes=2, **settings)  # type: ignore[arg-type] # by keyword
    ports = Ports(PORTS.conductor, PORTS.stores, PORTS.workers[: chosen.num_workers])
    return make_plan(chosen, run_dir=run_dir, token_file=run_dir / "token", ports=ports)


def flags(arguments: tuple[str, ...]) -> dict[str, str]:
    assert len(arguments) % 2 == 1
    return dict(zip(arguments[1::2], arguments[2::2], strict=True))


def test_every_process_gets_what_it_needs_to_find_the_others(tmp_path: Path) -> None:
    patience = {"lookup_seconds": 0.5, "load_seconds": 9.0}
    memory = {"dram": Size(64 << 20), "nvme": Size(1 << 30)}
    made = plan(tmp_path, both=2, model="m.gguf", load="always", **memory, **patience)
    *stores, one, two, conductor = made.specs()
    assert [s.name for s in made.specs()] == ["node-1", "node-2", "both-1", "both-2", "conductor"]
    for store, node, admin in zip(stores, made.nodes, (7421, 7423), strict=True):
        assert flags(store.arguments)["--dram"] == "64MiB"
        assert flags(store.arguments)["--nvme"] == "1GiB"
        assert flags(store.arguments)["--transports"] == "shm,tcp"
        assert flags(store.arguments)["--listen"] == node.listen
        assert flags(store.arguments)["--admin"] == f"127.0.0.1:{admin}"
        assert flags(store.arguments)["--data-dir"] == str(tmp_path / node.id)
    for worker, store in zip((one, two), stores, strict=True):
        assert flags(worker.arguments)["--store"] == f"unix:{flags(store.arguments)['--socket']}"
        assert flags(worker.arguments)["--model"] == "m.gguf"
        assert flags(worker.arguments)["--load"] == "always"
        assert flags(worker.arguments)["--lookup-seconds"] == "0.5"
        assert flags(worker.arguments)["--load-seconds"] == "9.0"
    assert flags(conductor.arguments)["--listen"] == "127.0.0.1:7400"
    for spec in made.specs():
        assert flags(spec.arguments)["--cluster"] == f"file:{tmp_path}/cluster"
        assert flags(spec.arguments)["--token-file"] == f"{tmp_path}/token"
        assert spec.ready_url.endswith("/readyz")


def test_workers_of_each_role_are_spread_over_the_nodes_in_turn(tmp_path: Path) -> None:
    made = plan(tmp_path, prefill=1, decode=2, both=1)
    assert [(worker.id, worker.node) for worker in made.workers] == [
        ("prefill-1", "node-1"),
        ("decode-1", "node-2"),
        ("decode-2", "node-1"),
        ("both-1", "node-2"),
    ]
    assert all(flags(w.spec.arguments)["--role"] == w.role for w in made.workers)
    # Also while its store is away, of which it would learn the name else.
    assert all(flags(w.spec.arguments)["--node-id"] == w.node for w in made.workers)


def test_a_store_without_tcp_has_no_data_port(tmp_path: Path) -> None:
    ports = Ports(7400, ((7420, 7421),), (7440,))
    settings = UpSettings(transports=("shm",))
    made = make_plan(settings, run_dir=tmp_path, token_file=tmp_path / "token", ports=ports)
    [store] = made.nodes
    assert store.listen == ""
    assert "--listen" not in store.spec.arguments


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
