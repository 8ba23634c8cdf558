"""Values of a store in another process, all over TCP: nothing is mapped on either side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contestants import Contestant, driver_command
from ..peers import MOONCAKE_NEEDS, MOONCAKE_PACKAGES, Peer
from ..report import Row
from ..rounds import LIMIT, OURS, Contestants, Say
from .cases import BATCH, Budget, Case
from .daemon import Daemon
from .measuring import measure
from .rows import call_row

PEERS: Mapping[str, Peer] = {
    "mooncake": Peer("store.mooncake_remote", MOONCAKE_PACKAGES, MOONCAKE_NEEDS)
}
_OPERATIONS = {"put": "put", "get": "get", "get, first time": "get_unseen"}


def remote_cases(sizes: Sequence[int]) -> Iterator[Case]:
    for batch in (1, BATCH):
        for size in sizes:
            for name, operation in _OPERATIONS.items():
                asked = {"do": operation}
                yield Case(
                    group="remote",
                    name=f"remote {name}" if batch == 1 else f"remote batch {name}",
                    size_bytes=size,
                    batch=batch,
                    ours=asked,
                    peers=asked,
                    limit=asked if batch == 1 else None,
                    limit_name="raw TCP socket, nothing verified",
                )


def remote_rows(
    cases: Sequence[Case],
    budget: Budget,
    daemon: Daemon,
    begin: Mapping[str, Any],
    *,
    directory: Path,
    peers: Mapping[str, Path],
    say: Say,
) -> tuple[list[Row], dict[str, str]]:
    """Rows, and the versions of those who are in them. `peers`: the environments of those to
    measure, too, by name."""
    token = (directory / "token").read_text().strip()
    settings = {**begin, "address": daemon.remote_address, "token": token}
    with Contestants(say) as contestants:
        for name, module in ((OURS, "remote"), (LIMIT, "raw_tcp")):
            log = directory / f"remote-{name}.log"
            contestants.enter(Contestant(name, driver_command(f"store.{module}"), log), settings)
        for name, peer_dir in peers.items():
            directories = {"peers": peer_dir, "logs": directory}
            contestants.enter_peer(name, PEERS[name], directories, settings)
        versions, rows = contestants.versions, []
        for case in cases:
            say(f"{case.name}, {case.size_bytes} B × {case.batch}")
            rows.append(call_row(case, measure(contestants, case, budget)))
    return rows, versions
