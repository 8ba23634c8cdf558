"""What this machine has, and which of its network cards are best for memory at a place."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from itertools import groupby
from pathlib import Path
from struct import pack

from ..rdma import rdma_ports
from .devices import Gpu, Nic, NumaNode, gpus, nics, numa_nodes
from .pci import NOWHERE, Proximity, proximity

_SIOCGIFADDR = 0x8915
_NAME_BYTES = 15


@dataclass(frozen=True, slots=True)
class Topology:
    """A location of memory is `cpu:NODE` or `cuda:INDEX`; others, and what is not there, are
    equally far from everything."""

    nodes: Sequence[NumaNode]
    nics: Sequence[Nic]
    gpus: Sequence[Gpu]

    @property
    def locations(self) -> list[str]:
        cuda = [f"cuda:{gpu.index}" for gpu in self.gpus if gpu.vendor == "nvidia"]
        return [f"cpu:{node.index}" for node in self.nodes] + cuda

    def location_of(self, cpus: Collection[int]) -> str:
        """Of what a process that runs on these allocates; empty when they are of several nodes."""
        of_them = [node.index for node in self.nodes if node.cpus.intersection(cpus)]
        return f"cpu:{of_them[0]}" if len(of_them) == 1 else ""

    def proximity(self, nic: Nic, location: str) -> Proximity:
        if nic.place is None:
            return Proximity.FAR
        gpu = self._gpu_of(location)
        found = proximity(nic.place, gpu.place) if gpu is not None else Proximity.FAR
        is_near = len(self.nodes) == 1 or nic.numa_node == self._node_of(location) != NOWHERE
        return Proximity.NODE if found is Proximity.FAR and is_near else found

    def ranked(self, location: str) -> list[list[Nic]]:
        """Cards that are up, those of equal rank together, the best first: the nearest, then the
        fastest."""

        def rank(nic: Nic) -> tuple[int, int, int]:
            near = self.proximity(nic, location)
            return near, self._distance(nic, location), -nic.mbit_per_second

        usable = sorted((nic for nic in self.nics if nic.is_up), key=rank)
        return [list(group) for _, group in groupby(usable, key=rank)]

    def _distance(self, nic: Nic, location: str) -> int:
        """Between NUMA nodes, as the firmware says; 0 where it does not."""
        indices = [node.index for node in self.nodes]
        here = self._node_of(location)
        if here not in indices or nic.numa_node not in indices:
            return 0
        distances = self.nodes[indices.index(here)].distances
        there = indices.index(nic.numa_node)
        return distances[there] if there < len(distances) else 0

    def _node_of(self, location: str) -> int:
        kind, _, index = location.partition(":")
        if kind == "cpu" and index.isdecimal():
            return int(index)
        gpu = self._gpu_of(location)
        return gpu.place.numa_node if gpu is not None else NOWHERE

    def _gpu_of(self, location: str) -> Gpu | None:
        of_them = (gpu for gpu in self.gpus if location == f"cuda:{gpu.index}")
        return next((gpu for gpu in of_them if gpu.vendor == "nvidia"), None)


def read_topology(root: Path = Path("/")) -> Topology:
    """From sysfs below `root`; what cannot be read is left out or not known."""
    return Topology(numa_nodes(root), nics(root, rdma_ports(root)), gpus(root))


def ipv4_address(interface: str) -> str:
    """What this machine is called there; empty when it has no such address, or interface."""
    request = pack("256s", interface.encode()[:_NAME_BYTES])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = ioctl(sock, _SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
