"""NUMA nodes, network cards and GPUs, and how far they are from each other. Reads sysfs."""

from .devices import Gpu, Nic, NumaNode
from .pci import Place, Proximity
from .topology import Topology, ipv4_address, read_topology

__all__ = [
    "Gpu",
    "Nic",
    "NumaNode",
    "Place",
    "Proximity",
    "Topology",
    "ipv4_address",
    "read_topology",
]
