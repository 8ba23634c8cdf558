from __future__ import annotations

import random
import socket

import pytest

from moontide.conductor.launch.errors import LaunchError
from moontide.conductor.launch.ports import HOST, fixed_ports, free_ports, is_free


def _free_base() -> int:
    """A base with its 80 ports free."""
    rng = random.Random()
    while True:
        base = rng.randrange(20000, 31000)
        if all(is_free(port) for port in range(base, base + 80)):
            return base


def test_ports_follow_the_base() -> None:
    base = _free_base()
    ports = fixed_ports(base, nodes=2, workers=3)
    assert ports.conductor == base
    assert ports.stores == ((base + 20, base + 21), (base + 22, base + 23))
    assert ports.workers == (base + 40, base + 41, base + 42)


def test_the_most_of_everything_fits_without_overlap() -> None:
    ports = fixed_ports(_free_base(), nodes=16, workers=16).all()
    assert len(set(ports)) == 1 + 2 * 16 + 16


@pytest.mark.parametrize("offset", [0, 20, 21, 40])
def test_a_taken_port_is_named(offset: int) -> None:
    base = _free_base()
    with socket.socket() as holder:
        holder.bind((HOST, base + offset))
        holder.listen(1)
        with pytest.raises(LaunchError, match=f"port {base + offset} on {HOST} is taken"):
            fixed_ports(base, nodes=1, workers=1)


def test_free_ports_are_distinct_and_outside_the_kernels_range() -> None:
    ports = free_ports(random.Random(7), nodes=3, workers=4).all()
    assert len(set(ports)) == 1 + 6 + 4
    assert all(20000 <= port < 32000 and is_free(port) for port in ports)
