"""Addresses: the socket, the ports, RDMA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from moontide.transfer.rdma import Port, best_gid

from ...daemon.data_dir import read_state
from ...daemon.listeners import MAX_SOCKET_PATH_BYTES
from ...service import HostPort
from ..types import Case, Finding, Status


class SocketPath:
    def examine(self, case: Case) -> Iterator[Finding]:
        path = case.store.socket_path.absolute()
        length = len(os.fsencode(path))
        value, needed = f"{length} bytes: {path}", f"at most {MAX_SOCKET_PATH_BYTES} bytes"
        if length > MAX_SOCKET_PATH_BYTES:
            yield Finding("socket path", value, needed, Status.FAIL, "give a shorter --socket")
        else:
            yield Finding("socket path", value, needed)


class Ports:
    """Free, or held by the store that runs on this very directory."""

    def examine(self, case: Case) -> Iterator[Finding]:
        store = case.store
        wanted = {"admin": store.admin}
        if "tcp" in store.transports:
            wanted["listen"] = store.listen
        if store.transfer_listen is not None:
            wanted["transfer-listen"] = store.transfer_listen
        own = _own_addresses(store.data_dir)
        for name, address in wanted.items():
            yield self._port(case, name, address, is_own=str(address) in own)

    def _port(self, case: Case, name: str, address: HostPort, *, is_own: bool) -> Finding:
        refusal = case.trials.listen(address)
        if not refusal:
            return Finding(f"port --{name}", f"{address} is free", "free")
        if is_own:
            return Finding(f"port --{name}", f"{address}: a store runs on this data dir", "free")
        fix = f"end what listens there (ss -ltnp), or give another --{name}"
        return Finding(f"port --{name}", refusal, "free", Status.FAIL, fix)


def _own_addresses(data_dir: Path) -> set[str | None]:
    """Of the store that runs on this directory, if there is one and it may be seen."""
    try:
        state = read_state(data_dir)
    except OSError:
        return set()
    return {state.listen, state.admin, state.transfer} if state else set()


class Rdma:
    """Told, not asked for: this version moves blocks over TCP. One line a port, with the address
    that would be used."""

    def examine(self, case: Case) -> Iterator[Finding]:
        ports = case.host.rdma_ports()
        if not ports:
            yield Finding("rdma", "none", "none: blocks move over TCP")
        for port in ports:
            yield self._judge(port)

    def _judge(self, port: Port) -> Finding:
        name = f"rdma {port.device}/{port.number}"
        best = best_gid(port.gids)
        node = f", NUMA node {port.numa_node}" if port.numa_node >= 0 else ""
        value = f"{port.state}, {port.link_layer}, {port.rate}{node}; " + (
            f"GID {best.gid} ({best.reason})" if best else "no GID"
        )
        needed = "ACTIVE, with a routable GID"
        if not port.is_active:
            fix = "bring the link up: ip link, ibstat; for InfiniBand start the subnet manager"
            return Finding(name, value, needed, Status.WARN, fix)
        if best is None or not best.gid.is_routable:
            fix = "give its network device an IPv4 address and use RoCE v2"
            return Finding(name, value, needed, Status.WARN, fix)
        return Finding(name, value, needed)
