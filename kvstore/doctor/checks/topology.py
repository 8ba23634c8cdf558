"""Where memory lies, seen from the processors."""

from __future__ import annotations

from collections.abc import Iterator

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


def _free_bytes(meminfo: str) -> int:
    """Of `Node 0 MemFree: 123 kB` rows."""
    for line in meminfo.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] == "MemFree:":
            return int(fields[3]) * 1024
    return 0
