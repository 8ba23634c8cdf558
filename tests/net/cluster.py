"""Stores on the hosts of a network, and how a test reaches them: by their unix sockets from here,
by their ports from a host."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from moontide.kvstore import StoreClient, TlsFiles, connect

from ..kvstore.daemon.admin import Admin
from ..store_process import StoreProcess
from .hosts import Network

DATA_PORT, ADMIN_PORT, TRANSFER_PORT = 7420, 7421, 7422
POOL_BYTES = 128 << 20


class HostedStore(StoreProcess):
    """One store of a cluster of file membership, which is reached however the network is."""

    def __init__(
        self, network: Network, host: str, parent: Path, sockets: Path, *flags: str
    ) -> None:
        root = parent / host
        root.mkdir()
        token = parent / "token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text("cluster-token-of-the-tests")
        address = network.address(host)
        placed = (
            *("--node-id", host, "--token-file", str(token), "--cluster", f"file:{parent / 'all'}"),
            *("--listen", f"{address}:{DATA_PORT}", "--admin", f"{address}:{ADMIN_PORT}"),
            *("--transfer-listen", f"{address}:{TRANSFER_PORT}"),
            *("--dram", str(POOL_BYTES), "--segment", "8MiB"),
            *flags,
        )
        super().__init__(root, sockets / f"{host}.sock", placed)
        self.token_file = token
        self._network = network
        self._host = host

    def launch(self) -> subprocess.Popen[bytes]:
        command = self._network.command(self._host, *self.command())
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def client(self) -> StoreClient:
        return connect(f"unix:{self.socket}")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * 4096

    def num_descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@dataclass(frozen=True, slots=True)
class Cluster:
    network: Network
    stores: dict[str, HostedStore]
    tls: TlsFiles | None  # a client's

    def dial(self, host: str, *, source: str) -> StoreClient:
        """A client on the host `source`. It reconnects only from threads that are there, too."""
        store = self.stores[host]
        address = f"tcp://{store.listen}"
        return self.network.run_on(
            source, lambda: connect(address, token=store.token, tls=self.tls)
        )

    def check_at_rest(self, host: str) -> None:
        """Asked on the host itself."""
        store = self.stores[host]
        self.network.run_on(host, lambda: Admin(store.admin, store.token).check_at_rest())

    def is_healthy(self, host: str) -> bool:
        store = self.stores[host]
        answer = self.network.run_on(host, lambda: Admin(store.admin, None).get("/healthz"))
        return bool(answer == {"status": "ok"})
