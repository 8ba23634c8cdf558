"""NUMA nodes, network cards and GPUs of a sysfs tree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..rdma import Port
from ..sysfs import integer, names, text
from .pci import NOWHERE, Place, place_of

_NODES = "sys/devices/system/node"
_NICS = "sys/class/net"
_PCI = "sys/bus/pci/devices"
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}


@dataclass(frozen=True, slots=True)
class NumaNode:
    """`distances`: to node 0, 1, … as the firmware says; 10 is its own."""

    index: int
    cpus: frozenset[int]
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nic:
    """`place` None: no card of this machine's (a bridge, a VLAN, a virtual machine's).
    `mbit_per_second` 0: not told. `rdma`: devices with an active port on it."""

    name: str
    is_up: bool
    mbit_per_second: int
    place: Place | None
    rdma: tuple[str, ...]

    @property
    def numa_node(self) -> int:
        return self.place.numa_node if self.place is not None else NOWHERE


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index`: by PCI address among those of its vendor, as CUDA counts with
    CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    index: int
    vendor: str
    place: Place


def numa_nodes(root: Path) -> list[NumaNode]:
    folder = root / _NODES
    indices = sorted(
        int(name[4:]) for name in names(folder) if name.startswith("node") and name[4:].isdecimal()
    )
    return [
        NumaNode(
            index,
            _cpus(text(folder / f"node{index}" / "cpulist")),
            _distances(text(folder / f"node{index}" / "distance")),
        )
        for index in indices
    ]


def nics(root: Path, ports: list[Port]) -> list[Nic]:
    """All but the loopback."""
    folder = root / _NICS
    return [_nic(folder / name, root, ports) for name in names(folder) if name != "lo"]


def gpus(root: Path) -> list[Gpu]:
    found: dict[str, list[Place]] = {}
    folder = root / _PCI
    for name in names(folder):
        vendor = _GPU_VENDORS.get(text(folder / name / "vendor"))
        if vendor and text(folder / name / "class").startswith(_GPU_CLASSES):
            place = place_of(folder / name, root)
            if place is not None:
                found.setdefault(vendor, []).append(place)
    return [
        Gpu(index, vendor, place)
        for vendor, places in sorted(found.items(), reverse=True)
        for index, place in enumerate(places)
    ]


def _nic(folder: Path, root: Path, ports: list[Port]) -> Nic:
    on_it = {
        port.device
        for port in ports
        if port.is_active and any(gid.netdev == folder.name for gid in port.gids)
    }
    return Nic(
        folder.name,
        text(folder / "operstate") == "up",
        max(integer(folder / "speed", 0), 0),
        place_of(folder / "device", root),
        tuple(sorted(on_it)),
    )


def _cpus(listed: str) -> frozenset[int]:
    """Of `0-3,8`."""
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _distances(listed: str) -> tuple[int, ...]:
    return tuple(int(part) for part in listed.split() if part.isdecimal())
