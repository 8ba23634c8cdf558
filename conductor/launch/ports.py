"""Which ports the processes of one machine listen on."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

from .errors import LaunchError

HOST = "127.0.0.1"
_STORE_OFFSETS = (*range(20, 40, 2), *range(60, 72, 2))  # of the data port; admin is the next
_WORKER_OFFSET = 40
_SEARCHED = range(20000, 32000)  # below the ports the kernel gives to outgoing connections
_ATTEMPTS = 2000


@dataclass(frozen=True, slots=True)
class Ports:
    """All on HOST."""

    conductor: int
    stores: tuple[tuple[int, int], ...]  # (data, admin) of each node
    workers: tuple[int, ...]

    def all(self) -> list[int]:
        return [self.conductor, *(port for pair in self.stores for port in pair), *self.workers]


def fixed_ports(base: int, *, nodes: int, workers: int) -> Ports:
    """For at most 16 nodes and 16 workers. Raises LaunchError naming the first port that is
    taken."""
    stores = tuple((base + offset, base + offset + 1) for offset in _STORE_OFFSETS[:nodes])
    ports = Ports(base, stores, tuple(base + _WORKER_OFFSET + n for n in range(workers)))
    for port in ports.all():
        if not is_free(port):
            raise LaunchError(
                f"port {port} on {HOST} is taken; stop what listens there, or give another "
                f"--port-base (0: free ones)"
            )
    return ports


def free_ports(rng: random.Random, *, nodes: int, workers: int) -> Ports:
    """Ports nobody listens on now. Raises LaunchError when there are too few."""
    wanted = 1 + 2 * nodes + workers
    found: list[int] = []
    for _ in range(_ATTEMPTS):
        port = rng.choice(_SEARCHED)
        if port not in found and is_free(port):
            found.append(port)
        if len(found) == wanted:
            break
    else:
        raise LaunchError(f"found {len(found)} free ports on {HOST}, {wanted} are needed")
    stores = tuple((found[1 + 2 * n], found[2 + 2 * n]) for n in range(nodes))
    return Ports(found[0], stores, tuple(found[1 + 2 * nodes :]))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True
