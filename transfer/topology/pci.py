"""Where a device sits, and how far two of them are from each other."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..sysfs import integer

_DEVICES = "sys/devices"
NOWHERE = -1
"""NUMA node of a device that does not say."""


class Proximity(enum.IntEnum):
    """What bytes between two devices cross. Smaller is better."""

    SWITCH = 0  # a PCI switch or a port they share
    ROOT = 1  # the host bridge
    NODE = 2  # the memory of their NUMA node
    FAR = 3  # the link between NUMA nodes, or nobody knows

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    Proximity.SWITCH: "same PCI switch",
    Proximity.ROOT: "same host bridge",
    Proximity.NODE: "same NUMA node",
    Proximity.FAR: "another NUMA node",
}


@dataclass(frozen=True, slots=True)
class Place:
    """`path`: the host bridge, the bridges below it, the device: names in sysfs."""

    path: tuple[str, ...]
    numa_node: int


def place_of(device: Path, root: Path) -> Place | None:
    """Of what a `device` link leads to; None for what is on no PCI bus, and broken links."""
    parts = Path(os.path.realpath(device)).relative_to(Path(os.path.realpath(root))).parts
    buses = [index for index, part in enumerate(parts) if part.startswith("pci")]
    if "/".join(parts[:2]) != _DEVICES or not buses or not device.exists():
        return None
    path = tuple(part for part in parts[buses[0] :] if ":" in part)
    return Place(path, integer(device / "numa_node", NOWHERE))


def proximity(one: Place, other: Place) -> Proximity:
    pairs = zip(one.path, other.path, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared > 1:
        return Proximity.SWITCH
    if shared:
        return Proximity.ROOT
    is_near = one.numa_node == other.numa_node != NOWHERE
    return Proximity.NODE if is_near else Proximity.FAR
