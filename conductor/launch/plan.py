"""From settings to the processes to start: names, addresses, command lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moontide.kvstore.service import SettingsError

from .child import ChildSpec
from .ports import HOST, Ports
from .settings import UpSettings

Role = Literal["prefill", "decode", "both"]
_MAX_SOCKET_BYTES = 107
_COPIES_ONLY = {"OMP_NUM_THREADS": "1"}  # daemons that do no arithmetic


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A store daemon; `listen` is HOST:PORT, or empty without tcp."""

    id: str
    socket: Path
    listen: str
    admin: str  # URL
    data_dir: Path
    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    id: str
    role: Role
    node: str
    url: str
    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class ConductorPlan:
    url: str
    spec: ChildSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `up` starts, in the order it starts them: stores, workers, Conductor."""

    run_dir: Path
    token_file: Path
    ports: Ports
    nodes: tuple[NodePlan, ...]
    workers: tuple[WorkerPlan, ...]
    conductor: ConductorPlan

    def stages(self) -> list[list[ChildSpec]]:
        """Each is started when those before it take work."""
        stores = [node.spec for node in self.nodes]
        return [stores, [worker.spec for worker in self.workers], [self.conductor.spec]]

    def specs(self) -> list[ChildSpec]:
        return [spec for stage in self.stages() for spec in stage]


def make_plan(settings: UpSettings, *, run_dir: Path, token_file: Path, ports: Ports) -> Plan:
    """Workers are spread over the nodes in turn: those that prefill, those that decode, those that
    do both. Raises SettingsError when the run directory's path is too long for a socket."""
    shared = ("--cluster", f"file:{run_dir / 'cluster'}", "--token-file", str(token_file))
    nodes = tuple(
        _node(settings, f"node-{number}", pair, run_dir, shared)
        for number, pair in enumerate(ports.stores, 1)
    )
    workers = tuple(
        _worker(settings, role, name, port, nodes[index % len(nodes)], run_dir, shared)
        for index, ((role, name), port) in enumerate(
            zip(_roles(settings), ports.workers, strict=True)
        )
    )
    conductor = _conductor(ports.conductor, run_dir, shared)
    return Plan(run_dir, token_file, ports, nodes, workers, conductor)


def _roles(settings: UpSettings) -> list[tuple[Role, str]]:
    """Role and name of each worker."""
    counts: dict[Role, int] = {
        "prefill": settings.prefill,
        "decode": settings.decode,
        "both": settings.num_both,
    }
    return [
        (role, f"{role}-{number}")
        for role, count in counts.items()
        for number in range(1, count + 1)
    ]


def _node(
    settings: UpSettings,
    name: str,
    ports: tuple[int, int],
    run_dir: Path,
    shared: tuple[str, ...],
) -> NodePlan:
    socket = run_dir / f"{name}.sock"
    if len(str(socket).encode()) > _MAX_SOCKET_BYTES:
        raise SettingsError(
            f"socket path {socket} exceeds {_MAX_SOCKET_BYTES} bytes; give a shorter --run-dir "
            "or TMPDIR"
        )
    data_dir = run_dir / name
    data, admin = ports
    listen = f"{HOST}:{data}" if "tcp" in settings.transports else ""
    arguments = (
        *("store", "--node-id", name, "--data-dir", str(data_dir), "--socket", str(socket)),
        *(("--listen", listen) if listen else ()),
        *("--admin", f"{HOST}:{admin}"),
        *("--dram", str(settings.dram), "--nvme", str(settings.nvme)),
        *("--transports", ",".join(settings.transports)),
        *shared,
    )
    spec = ChildSpec(
        name,
        f"store daemon {name} to reserve {settings.dram} of memory",
        arguments,
        f"http://{HOST}:{admin}/readyz",
        run_dir / f"{name}.log",
        _COPIES_ONLY,
    )
    return NodePlan(name, socket, listen, f"http://{HOST}:{admin}", data_dir, spec)


def _worker(
    settings: UpSettings,
    role: Role,
    name: str,
    port: int,
    node: NodePlan,
    run_dir: Path,
    shared: tuple[str, ...],
) -> WorkerPlan:
    arguments = (
        *("worker", "--id", name, "--node-id", node.id, "--role", role),
        *("--listen", f"{HOST}:{port}"),
        *("--store", f"unix:{node.socket}", "--model", settings.model),
        *("--device", settings.device, "--load", settings.load),
        *("--lookup-seconds", str(settings.lookup_seconds)),
        *("--load-seconds", str(settings.load_seconds)),
        *shared,
    )
    url = f"http://{HOST}:{port}"
    spec = ChildSpec(
        name,
        f"worker {name} to load {settings.model}",
        arguments,
        f"{url}/readyz",
        run_dir / f"{name}.log",
        {},
    )
    return WorkerPlan(name, role, node.id, url, spec)


def _conductor(port: int, run_dir: Path, shared: tuple[str, ...]) -> ConductorPlan:
    url = f"http://{HOST}:{port}"
    spec = ChildSpec(
        "conductor",
        "the conductor to see a worker",
        ("conductor", "--listen", f"{HOST}:{port}", *shared),
        f"{url}/readyz",
        run_dir / "conductor.log",
        _COPIES_ONLY,
    )
    return ConductorPlan(url, spec)
