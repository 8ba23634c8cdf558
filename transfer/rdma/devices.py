"""Ports of the RDMA devices in a sysfs tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        for device in _names(devices)
        for number in sorted(filter(str.isdigit, _names(devices / device / "ports")), key=int)
    ]


def _port(device: Path, number: int) -> Port:
    folder = device / "ports" / str(number)
    link_layer = _text(folder / "link_layer")
    numa = _text(device / "device" / "numa_node")
    return Port(
        device=device.name,
        number=number,
        state=_text(folder / "state").rpartition(":")[2].strip(),
        link_layer=link_layer,
        rate=_text(folder / "rate"),
        numa_node=int(numa) if numa.lstrip("-").isdigit() else -1,
        gids=tuple(_gids(folder, link_layer)),
    )


def _gids(folder: Path, link_layer: str) -> Iterator[Gid]:
    rows = sorted(int(name) for name in _names(folder / "gids") if name.isdigit())
    for index in rows[:MAX_GIDS]:
        gid = parse_gid(
            index,
            _text(folder / "gids" / str(index)),
            _text(folder / "gid_attrs" / "types" / str(index)),
            link_layer=link_layer,
            netdev=_text(folder / "gid_attrs" / "ndevs" / str(index)),
        )
        if gid is not None:
            yield gid


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    """Empty where there is none: sysfs answers EINVAL for rows that are not in use."""
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
