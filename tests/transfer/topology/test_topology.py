"""Recorded sysfs trees: what is seen, and which cards are best for memory where (R72)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moontide.transfer.topology import Proximity, Topology, ipv4_address, read_topology

from ...recorded_trees import record_tree

RecordedTopology = Callable[[str], Topology]


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedTopology:
    return lambda name: read_topology(record_tree(tmp_path, name))


def ranks(topology: Topology, location: str) -> list[list[str]]:
    return [[nic.name for nic in group] for group in topology.ranked(location)]


def near(topology: Topology, location: str) -> dict[str, Proximity]:
    return {nic.name: topology.proximity(nic, location) for nic in topology.nics}


def test_two_sockets_what_there_is(recorded: RecordedTopology) -> None:
    topology = recorded("two_sockets")
    assert topology.locations == ["cpu:0", "cpu:1", "cuda:0", "cuda:1"]
    assert [node.distances for node in topology.nodes] == [(10, 21), (21, 10)]
    assert {nic.name: (nic.is_up, nic.mbit_per_second) for nic in topology.nics} == {
        "docker0": (False, 0),
        "eno1": (True, 1000),
        "enp155s0": (True, 100_000),
        "enp26s0": (True, 100_000),
    }
    assert {nic.name: nic.rdma for nic in topology.nics if nic.rdma} == {"enp26s0": ("mlx5_0",)}
    assert [gpu.place.path[-1] for gpu in topology.gpus] == ["0000:19:00.0", "0000:9a:00.0"]
    assert [gpu.place.numa_node for gpu in topology.gpus] == [0, 1]


def test_two_sockets_each_location_has_its_own_card_first(recorded: RecordedTopology) -> None:
    topology = recorded("two_sockets")
    assert ranks(topology, "cuda:0") == [["enp26s0"], ["eno1"], ["enp155s0"]]
    assert ranks(topology, "cuda:1") == [["enp155s0"], ["enp26s0"], ["eno1"]]
    assert ranks(topology, "cpu:0") == [["enp26s0"], ["eno1"], ["enp155s0"]]
    assert ranks(topology, "cpu:1") == [["enp155s0"], ["enp26s0"], ["eno1"]]
    assert near(topology, "cuda:0") == {
        "docker0": Proximity.FAR,
        "eno1": Proximity.NODE,
        "enp155s0": Proximity.FAR,
        "enp26s0": Proximity.SWITCH,
    }


def test_memory_of_nowhere_in_particular_goes_by_speed(recorded: RecordedTopology) -> None:
    topology = recorded("two_sockets")
    for location in ("", "cuda:7", "cpu:x", "tape:0"):
        assert ranks(topology, location) == [["enp155s0", "enp26s0"], ["eno1"]]


def test_where_a_process_allocates(recorded: RecordedTopology) -> None:
    topology = recorded("two_sockets")
    assert topology.location_of({3, 40}) == "cpu:0"
    assert topology.location_of({16}) == "cpu:1"
    assert topology.location_of({0, 16}) == ""
    assert topology.location_of({500}) == ""


def test_a_virtual_machine_has_one_card_and_nothing_more(recorded: RecordedTopology) -> None:
    topology = recorded("virtual_machine")
    assert topology.locations == ["cpu:0"]
    [nic] = topology.nics
    assert (nic.name, nic.is_up, nic.mbit_per_second, nic.rdma) == ("eth0", True, 0, ())
    assert ranks(topology, "cpu:0") == [["eth0"]]
    assert near(topology, "cpu:0") == {"eth0": Proximity.NODE}  # there is no other


def test_a_half_broken_tree_gives_what_can_be_read(recorded: RecordedTopology) -> None:
    topology = recorded("half_broken")
    assert [(node.index, sorted(node.cpus), node.distances) for node in topology.nodes] == [
        (0, [0, 1, 2, 3], (10,)),
        (2, [], ()),
    ]
    assert ranks(topology, "cpu:0") == [["good", "odd"]]
    assert {nic.name: nic.place is None for nic in topology.nics} == {
        "dangling": True,
        "good": False,
        "odd": True,
    }
    [gpu] = topology.gpus
    assert (gpu.place.path[-1], gpu.place.numa_node) == ("0000:08:00.0", -1)
    assert near(topology, "cuda:0")["good"] is Proximity.ROOT
    assert ranks(topology, "cuda:0") == [["good"], ["odd"]]


def test_a_tree_without_anything(tmp_path: Path) -> None:
    topology = read_topology(tmp_path)
    assert topology == Topology([], [], [])
    assert topology.locations == []
    assert topology.ranked("cpu:0") == []
    assert topology.location_of({0}) == ""


def test_addresses_of_interfaces() -> None:
    assert ipv4_address("lo") == "127.0.0.1"
    assert ipv4_address("no-such-interface-here") == ""
