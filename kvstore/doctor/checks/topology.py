"""Where memory lies, seen from the processors and from the network cards."""

from __future__ import annotations

from collections.abc import Iterator

from moontide.transfer.topology import Nic, Topology

from ...service import human_size
from ..types import Case, Finding, Status

_NODES = "sys/devices/system/node"


class Numa:
    """A pool that spills over one node's memory is slower for everyone on the others."""

    def examine(self, case: Case) -> Iterator[Finding]:
        names = [
            name
            for name in case.host.names(_NODES)
            if name.startswith("node") and name[4:].isdigit()
        ]
        if len(names) < 2:
            yield Finding("numa", f"{len(names) or 1} node", "any")
            return
        nodes = sorted(names, key=lambda name: int(name[4:]))
        distances = "; ".join(case.host.text(f"{_NODES}/{name}/distance") for name in nodes)
        free = [_free_bytes(case.host.text(f"{_NODES}/{name}/meminfo")) for name in nodes]
        shown = ", ".join(
            f"{name[4:]}: {human_size(size)}" for name, size in zip(nodes, free, strict=True)
        )
        value = f"{len(nodes)} nodes, distances {distances}, free {shown}"
        needed = f"{case.store.dram} on one node, that of the GPU or network card"
        if int(case.store.dram) > max(free):
            fix = "one store a node (numactl --cpunodebind --membind), or numactl --interleave=all"
            yield Finding("numa", value, needed, Status.WARN, fix)
        else:
            yield Finding("numa", value, needed)


class Cards:
    """One line for each network card on a bus, with the memory that is read and filled over it
    first, and for each that --rails names."""

    def examine(self, case: Case) -> Iterator[Finding]:
        topology = case.host.topology()
        cards = [nic for nic in topology.nics if nic.place is not None]
        for nic in cards:
            if nic.name not in case.store.rails:
                yield Finding(f"network card {nic.name}", _described(nic, topology), "any")
        if not cards:
            yield Finding("network cards", "none on a bus", "any")
        for name in case.store.rails:
            yield self._judge(name, case, topology)

    def _judge(self, name: str, case: Case, topology: Topology) -> Finding:
        nic = next((each for each in topology.nics if each.name == name), None)
        address = case.host.ipv4_address(name)
        check, needed = f"network card {name}", "up, with an IPv4 address: --rails names it"
        if nic is None or not address:
            value = _described(nic, topology) if nic is not None else "not here"
            fix = f"give it an address (ip -4 address add … dev {name}), or leave it out of --rails"
            return Finding(check, value, needed, Status.FAIL, fix)
        value = f"{address}, {_described(nic, topology)}"
        if not nic.is_up:
            fix = f"ip link set {name} up: until then its share goes as the kernel routes"
            return Finding(check, value, needed, Status.WARN, fix)
        return Finding(check, value, needed)


def _described(nic: Nic, topology: Topology) -> str:
    parts = ["up" if nic.is_up else "down"]
    if nic.mbit_per_second:
        parts.append(f"{nic.mbit_per_second / 1000:g} Gbit/s")
    if nic.numa_node >= 0:
        parts.append(f"NUMA node {nic.numa_node}")
    parts += nic.rdma
    first_for = [
        f"{location} ({topology.proximity(nic, location)})"
        for location in topology.locations
        if any(nic in group for group in topology.ranked(location)[:1])
    ]
    return ", ".join(parts) + (f"; first for {', '.join(first_for)}" if first_for else "")


def _free_bytes(meminfo: str) -> int:
    """Of `Node 0 MemFree: 123 kB` rows."""
    for line in meminfo.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] == "MemFree:":
            return int(fields[3]) * 1024
    return 0
