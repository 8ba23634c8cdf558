"""The daemons of one world, as an operator has them: started, ended, started again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from moontide.kvstore import StoreError
from moontide.kvstore.client.store_client import StoreClient, connect
from moontide.kvstore.daemon.admin_client import AdminClient
from moontide.kvstore.daemon.daemon import StoreDaemon
from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.service import HostPort, Process, Size

from .machine.scheduler import Process as Running
from .machine.scheduler import Thread
from .machine.world import World

DATA_PORT, ADMIN_PORT, TRANSFER_PORT = 7420, 7421, 7422
TOKEN = "a-token-of-the-simulated-cluster"
GRACE_SECONDS = 10.0
"""For a daemon to end after SIGTERM."""


@dataclasses.dataclass
class Node:
    """One host, and the daemon that runs there now."""

    name: str
    host: str
    settings: StoreSettings
    process: Running | None = None
    main: Thread | None = None

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_killed


class Cluster:
    def __init__(self, world: World, directory: Path, num_nodes: int) -> None:
        self.world = world
        self.members = directory / "members"
        self._disk = Size(world.rng.choice((0, 16 << 20)))
        self._token_file = directory / "token"
        self._token_file.write_text(TOKEN + "\n")
        self._token_file.chmod(0o600)
        self.nodes = [self._node(directory, number) for number in range(1, num_nodes + 1)]

    def _node(self, directory: Path, number: int) -> Node:
        name, host = f"n{number}", f"10.0.0.{number}"
        settings = StoreSettings(
            data_dir=directory / name,
            node_id=name,
            listen=HostPort(host, DATA_PORT),
            admin=HostPort(host, ADMIN_PORT),
            transfer_listen=HostPort(host, TRANSFER_PORT),
            dram=Size(4 << 20),
            segment=Size(512 << 10),
            max_entries=1024,
            cluster=f"file:{self.members}",
            nvme=self._disk,
            nvme_region=Size(1 << 20) if self._disk else None,
            nvme_free_floor=Size(0) if self._disk else None,
            poll_seconds=0.0,
        )
        return Node(name, host, settings)

    # -- life -------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        node.process = process = self.world.process(node.name, node.host)

        def run() -> None:
            daemon = StoreDaemon(node.settings, Process("store", self._token_file))
            try:
                self.world.run_loop(process, daemon.serve)
            finally:
                daemon.close()

        node.main = self.world.run(process, run)

    def kill(self, node: Node) -> None:
        assert node.process is not None
        self.world.kill(node.process)

    def terminate(self, node: Node) -> None:
        """Waits until it has ended."""
        assert node.process is not None
        assert node.main is not None
        self.world.terminate(node.process)
        assert self.world.scheduler.join(node.main, GRACE_SECONDS), f"{node.name} does not end"
        self.world.kill(node.process)

    # -- visits -----------------------------------------------------------------------

    def connect(self, node: Node, transport: str, timeout_s: float) -> StoreClient:
        """As the process that calls."""
        socket = node.settings.socket_path
        address = f"unix:{socket}" if transport == "unix" else f"tcp://{node.settings.listen}"
        return connect(address, token=TOKEN, timeout_s=timeout_s)

    def admin(self, node: Node, timeout_s: float = 5.0) -> AdminClient:
        return AdminClient(f"http://{node.settings.admin}", TOKEN, timeout_s=timeout_s)

    def report(self, node: Node) -> dict[str, Any]:
        report: dict[str, Any] = self.admin(node).get("/v1/stats", {}, dict)
        return report

    def is_whole(self, node: Node) -> bool:
        """Whether it is there, and knows all others as well."""
        try:
            peers = self.report(node)["peers"]
        except StoreError:
            return False
        return len(peers["up"]) == len(self.nodes) - 1
