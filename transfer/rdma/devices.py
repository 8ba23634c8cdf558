"""Ports of the RDMA devices in a sysfs tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..sysfs import integer, names, text
from .gids import Gid, parse_gid

_FOLDER = "sys/class/infiniband"
MAX_GIDS = 256
"""Rows read of one table; the kernel's own limit."""


@dataclass(frozen=True, slots=True)
class Port:
    """`state` as the kernel words it, e.g. `ACTIVE`; `numa_node` -1: not told."""

    device: str
    number: int
    state: str
    link_layer: str
    rate: str
    numa_node: int
    gids: tuple[Gid, ...]

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"


def rdma_ports(root: Path = Path("/")) -> list[Port]:
    """In the order of their names. A machine without RDMA has none; a row that cannot be read is
    left out."""
    devices = root / _FOLDER
    return [
        _port(devices / device, int(number))
        for device in names(devices)
        for number in sorted(filter(str.isdigit, names(devices / device / "ports")), key=int)
    ]


def _port(device: Path, number: int) -> Port:
    folder = device / "ports" / str(number)
    link_layer = text(folder / "link_layer")
    return Port(
        device=device.name,
        number=number,
        state=text(folder / "state").rpartition(":")[2].strip(),
        link_layer=link_layer,
        rate=text(folder / "rate"),
        numa_node=integer(device / "device" / "numa_node", -1),
        gids=tuple(_gids(folder, link_layer)),
    )


def _gids(folder: Path, link_layer: str) -> Iterator[Gid]:
    rows = sorted(int(name) for name in names(folder / "gids") if name.isdigit())
    for index in rows[:MAX_GIDS]:
        gid = parse_gid(
            index,
            text(folder / "gids" / str(index)),
            text(folder / "gid_attrs" / "types" / str(index)),
            link_layer=link_layer,
            netdev=text(folder / "gid_attrs" / "ndevs" / str(index)),
        )
        if gid is not None:
            yield gid
