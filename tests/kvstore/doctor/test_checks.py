"""Every check on recorded machines: what is found, what is needed, what helps."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.doctor.cuda import Cuda
from moontide.kvstore.doctor.host import Limit
from moontide.kvstore.doctor.trials import DiskSpeed
from moontide.kvstore.doctor.types import Status
from moontide.kvstore.service import HostPort, Size

from ...recorded_trees import record_tree
from .recorded import GIB, MEMLOCK, NOFILE, RecordedHost, RecordedTrials, findings, record

RDMA_PORT = "sys/class/infiniband/mlx5_0/ports/1"
ACTIVE_PORT = {
    f"{RDMA_PORT}/state": "4: ACTIVE",
    f"{RDMA_PORT}/link_layer": "Ethernet",
    f"{RDMA_PORT}/rate": "200 Gb/sec (4X HDR)",
    f"{RDMA_PORT}/gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe11:2233",
    f"{RDMA_PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0203",
    f"{RDMA_PORT}/gid_attrs/types/0": "IB/RoCE v1",
    f"{RDMA_PORT}/gid_attrs/types/3": "RoCE v2",
    "sys/class/infiniband/mlx5_0/device/numa_node": "1",
}


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(data_dir=tmp_path / "data", dram=Size(8 * GIB), nvme=Size(100 * GIB))


def test_a_bare_machine_passes_and_absence_is_said(tmp_path: Path, settings: StoreSettings) -> None:
    """Neither RDMA nor CUDA nor anything below /sys."""
    found = findings(RecordedHost(record(tmp_path, {})), settings)
    assert [f for f in found.values() if f.status is not Status.OK] == []
    assert all(f.value and f.needed and not f.fix for f in found.values())
    assert (found["rdma"].value, found["cuda"].value, found["swap"].value) == (
        "none",
        "none",
        "off",
    )
    assert (found["numa"].value, found["hugepages"].value) == ("1 node", "none")


def test_everything_that_is_wrong_comes_with_a_fix(tmp_path: Path, settings: StoreSettings) -> None:
    root = record(tmp_path, {"proc/meminfo": "MemAvailable: 1024 kB\nSwapTotal: 4096 kB\n"})
    trials = RecordedTrials(
        why_not_written="Permission denied",
        speed=DiskSpeed(1e8, 1e8, 1 << 20, "Invalid argument"),
        why_not_sealed="Operation not permitted",
        why_not_watched="Function not implemented",
        clock="not synchronised",
        taken=frozenset({"127.0.0.1:7420", "127.0.0.1:7421"}),
    )
    host = RecordedHost(root, free_bytes=GIB, limits={NOFILE: Limit(256, 512)}, processors=1)
    found = findings(host, settings, trials)
    wrong = {name: f.status.value for name, f in found.items() if f.status is not Status.OK}
    assert wrong == {
        "memory": "fail",
        "swap": "warn",
        "sealed memory": "fail",
        "data dir": "fail",
        "disk space": "fail",
        "direct I/O": "warn",
        "disk speed": "warn",
        "open files": "fail",
        "processors": "warn",
        "port --listen": "fail",
        "port --admin": "fail",
        "wall clock": "warn",
        "pidfd": "fail",
    }
    assert all(found[name].fix for name in wrong)


# -- memory -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "files", "available", "source"),
    [
        (
            "0::/pod\n",
            {"memory.max": "4294967296", "memory.current": "1073741824", "memory.stat": ""},
            "3 GiB available",
            "cgroup /pod",
        ),
        (
            "9:memory:/pod\n0::/\n",
            {
                "memory.limit_in_bytes": "2147483648",
                "memory.usage_in_bytes": "1073741824",
                "memory.stat": "total_inactive_file 536870912",
            },
            "1.5 GiB available",
            "cgroup /pod",
        ),
    ],
    ids=["v2", "v1"],
)
def test_r70_memory_beyond_a_cgroup_limit_is_told(
    tmp_path: Path,
    settings: StoreSettings,
    cgroup: str,
    files: dict[str, str],
    available: str,
    source: str,
) -> None:
    folder = "sys/fs/cgroup/memory/pod" if "memory" in cgroup else "sys/fs/cgroup/pod"
    recorded = {f"{folder}/{name}": text for name, text in files.items()}
    found = findings(
        RecordedHost(record(tmp_path, {"proc/self/cgroup": cgroup, **recorded})), settings
    )
    finding = found["memory"]
    assert finding.status is Status.FAIL
    assert available in finding.value
    assert source in finding.value
    assert "8GiB" in finding.needed


def test_r71_a_low_memlock_is_told_where_rdma_or_the_index_would_need_more(
    tmp_path: Path, settings: StoreSettings
) -> None:
    limits = {MEMLOCK: Limit(64 << 10, 64 << 10)}
    bare = RecordedHost(record(tmp_path / "a", {}), limits=limits)
    without = findings(bare, msgspec.structs.replace(settings, nvme=Size(0)))
    assert without["memlock"].status is Status.OK
    with_rdma = RecordedHost(record(tmp_path / "b", ACTIVE_PORT), limits=limits)
    index = "256 MiB for the index of the disk"
    for host, needed in (
        (bare, index),
        (with_rdma, f"8 GiB to register the pool for RDMA, {index}"),
    ):
        finding = findings(host, settings)["memlock"]
        assert (finding.status, finding.needed) == (Status.WARN, needed)
        assert "64 KiB" in finding.value
        assert "ulimit -l unlimited" in finding.fix


def test_hugepages_are_counted(tmp_path: Path, settings: StoreSettings) -> None:
    pages = "sys/kernel/mm/hugepages/hugepages-1048576kB"
    thp = "sys/kernel/mm/transparent_hugepage"
    files = {
        f"{pages}/free_hugepages": "3\n",
        f"{pages}/nr_hugepages": "16\n",
        f"{thp}/enabled": "always [madvise] never\n",
        f"{thp}/shmem_enabled": "always within_size [advise] never deny force\n",
    }
    found = findings(RecordedHost(record(tmp_path, files)), settings)
    assert found["hugepages"].value == "1048576kB: 3 free of 16"
    assert found["transparent hugepages"].value == "madvise; shared memory: advise"
    assert found["transparent hugepages"].status is Status.OK


def test_huge_pages_withheld_from_shared_memory_are_told(
    tmp_path: Path, settings: StoreSettings
) -> None:
    thp = "sys/kernel/mm/transparent_hugepage"
    files = {f"{thp}/shmem_enabled": "always within_size advise [never] deny force\n"}
    finding = findings(RecordedHost(record(tmp_path, files)), settings)["transparent hugepages"]
    assert finding.status is Status.WARN
    assert f"echo advise > /{thp}/shmem_enabled" in finding.fix


# -- disk -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "status"),
    [("xfs", "ok"), ("nfs4", "fail"), ("cifs", "fail"), ("tmpfs", "warn"), ("overlay", "warn")],
)
def test_the_kind_of_file_system_is_judged(
    tmp_path: Path, settings: StoreSettings, kind: str, status: str
) -> None:
    """Of the mount the directory lies on, not of its parent's."""
    mounts = (
        "27 1 259:1 / / rw - ext4 /dev/sda1 rw\n"
        f"30 27 0:5 / {tmp_path}/with\\040space rw shared:1 - {kind} source rw\n"
    )
    data_dir = tmp_path / "with space"
    data_dir.mkdir()
    root = record(tmp_path / "root", {"proc/self/mountinfo": mounts})
    store = StoreSettings(data_dir=data_dir, nvme=Size(100 * GIB))
    finding = findings(RecordedHost(root), store)["file system"]
    assert (finding.status.value, bool(finding.fix)) == (status, status != "ok")
    assert kind in finding.value


def test_r54_a_disk_without_direct_io_names_the_fallback(
    tmp_path: Path, settings: StoreSettings
) -> None:
    trials = RecordedTrials(speed=DiskSpeed(2e9, 2e9, 1 << 20, "Invalid argument"))
    finding = findings(RecordedHost(record(tmp_path, {})), settings, trials)["direct I/O"]
    assert finding.status is Status.WARN
    assert "page cache is used instead" in finding.fix


def test_r74_a_refused_io_uring_is_told_and_no_obstacle(
    tmp_path: Path, settings: StoreSettings
) -> None:
    trials = RecordedTrials(why_no_io_uring="Operation not permitted")
    finding = findings(RecordedHost(record(tmp_path, {})), settings, trials)["io_uring"]
    assert (finding.status, finding.value) == (Status.OK, "Operation not permitted")
    assert "POSIX" in finding.needed


def test_the_floor_counts_and_so_does_what_the_tier_already_has(tmp_path: Path) -> None:
    host = RecordedHost(record(tmp_path / "root", {}), free_bytes=100 * GIB)
    asked = {"data_dir": tmp_path, "nvme": Size(100 * GIB)}
    tight = findings(host, StoreSettings(**asked))["disk space"]
    assert (tight.status, "1 GiB that stay free" in tight.needed) == (Status.FAIL, True)
    without = StoreSettings(**asked, nvme_free_floor=Size(0))
    assert findings(host, without)["disk space"].status is Status.OK
    (tmp_path / "nvme").mkdir()
    (tmp_path / "nvme/region").write_bytes(bytes(2 << 20))
    kept = StoreSettings(**asked, nvme_free_floor=Size(2 << 20))
    assert findings(host, kept)["disk space"].status is Status.OK


# -- processes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "150000 100000\n"},
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/pod\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_quota_below_two_processors_is_told(
    tmp_path: Path, settings: StoreSettings, files: dict[str, str]
) -> None:
    finding = findings(RecordedHost(record(tmp_path, files)), settings)["processors"]
    assert (finding.status, finding.value) == (Status.WARN, "16, cgroup quota 1.5")


def test_open_files_count_segments_clients_and_regions(tmp_path: Path) -> None:
    host = RecordedHost(record(tmp_path, {}), limits={NOFILE: Limit(1024, 4096)})
    small = StoreSettings(data_dir=tmp_path, dram=Size(1 * GIB))
    large = StoreSettings(data_dir=tmp_path, dram=Size(48 * GIB))
    assert findings(host, small)["open files"].status is Status.OK
    finding = findings(host, large)["open files"]
    assert finding.status is Status.FAIL
    assert finding.needed.startswith(str(2 * 1024 + 3 * 48 * 16 + 256))


def test_numa_nodes_and_distances(tmp_path: Path, settings: StoreSettings) -> None:
    node = "sys/devices/system/node"
    files = {
        f"{node}/node0/distance": "10 21",
        f"{node}/node1/distance": "21 10",
        f"{node}/node0/meminfo": "Node 0 MemTotal: 33554432 kB\nNode 0 MemFree: 4194304 kB\n",
        f"{node}/node1/meminfo": "Node 1 MemFree: 2097152 kB\n",
    }
    host = RecordedHost(record(tmp_path, files))
    finding = findings(host, settings)["numa"]
    assert finding.value == "2 nodes, distances 10 21; 21 10, free 0: 4 GiB, 1: 2 GiB"
    assert finding.status is Status.WARN
    assert findings(host, StoreSettings(data_dir=tmp_path))["numa"].status is Status.OK


# -- network, clocks, devices -------------------------------------------------------


def test_network_cards_are_shown_with_the_memory_they_are_first_for(
    tmp_path: Path, settings: StoreSettings
) -> None:
    root = record_tree(record(tmp_path, {}), "two_sockets")
    found = findings(RecordedHost(root), settings)
    assert found["network card enp26s0"].value == (
        "up, 100 Gbit/s, NUMA node 0, mlx5_0; "
        "first for cpu:0 (same NUMA node), cuda:0 (same PCI switch)"
    )
    assert found["network card eno1"].value == "up, 1 Gbit/s, NUMA node 0"
    assert "network card docker0" not in found


def test_a_rail_that_is_not_there_fails_and_one_that_is_down_warns(
    tmp_path: Path, settings: StoreSettings
) -> None:
    root = record_tree(record(tmp_path, {}), "two_sockets")
    rails = ("enp26s0", "docker0", "eno1", "eth7")
    wanted = msgspec.structs.replace(settings, cluster=f"file:{tmp_path}", rails=rails)
    host = RecordedHost(root, addresses={"enp26s0": "10.0.0.1", "docker0": "172.17.0.1"})
    found = findings(host, wanted)
    by_rail = {rail: found[f"network card {rail}"].status for rail in rails}
    assert by_rail == {
        "enp26s0": Status.OK,
        "docker0": Status.WARN,
        "eno1": Status.FAIL,
        "eth7": Status.FAIL,
    }
    assert found["network card enp26s0"].value.startswith("10.0.0.1, up, 100 Gbit/s")


def test_rdma_ports_are_shown_with_the_address_to_use(
    tmp_path: Path, settings: StoreSettings
) -> None:
    files = {**ACTIVE_PORT, "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN"}
    found = findings(RecordedHost(record(tmp_path, files)), settings)
    up, down = found["rdma mlx5_0/1"], found["rdma mlx5_1/1"]
    assert up.status is Status.OK
    assert "NUMA node 1; GID 3: 10.1.2.3 (RoCE v2) (RoCE v2, IPv4, routable)" in up.value
    assert (down.status, "no GID" in down.value) == (Status.WARN, True)


def test_ports_of_a_store_on_this_very_directory_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    state = '{"socket":"/s","listen":"127.0.0.1:7420","admin":"127.0.0.1:9","pid":1,"instance":"a"}'
    (tmp_path / "data/store.json").write_text(state)
    store = StoreSettings(data_dir=tmp_path / "data", admin=HostPort("127.0.0.1", 7421))
    trials = RecordedTrials(taken=frozenset({"127.0.0.1:7420", "127.0.0.1:7421"}))
    found = findings(RecordedHost(record(tmp_path, {})), store, trials)
    assert found["port --listen"].status is Status.OK
    assert found["port --admin"].status is Status.FAIL


def test_a_socket_path_the_kernel_would_not_take(tmp_path: Path) -> None:
    store = StoreSettings(data_dir=tmp_path, socket=Path("/run/" + "x" * 120))
    finding = findings(RecordedHost(record(tmp_path, {})), store)["socket path"]
    assert finding.status is Status.FAIL
    assert finding.value.startswith("125 bytes")


def test_slow_and_shifted_clocks(tmp_path: Path, settings: StoreSettings) -> None:
    files = {
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
        "proc/self/timens_offsets": "monotonic    3600   0\nboottime  0  0\n",
    }
    found = findings(RecordedHost(record(tmp_path, files)), settings)
    assert (found["clock source"].value, found["clock source"].status) == ("hpet", Status.WARN)
    assert found["time namespace"].value == "monotonic shifted by 3600 s"
    assert found["time namespace"].status is Status.WARN


@pytest.mark.parametrize(
    ("cuda", "status", "value"),
    [
        (Cuda(12040, 12080, 8), "ok", "runtime 12.4, driver 12.8, 8 devices"),
        (Cuda(13000, 12080, 8), "warn", "runtime 13.0, driver 12.8, 8 devices"),
        (Cuda(12040, 12080, 0), "warn", "runtime 12.4, driver 12.8, 0 devices"),
        (Cuda(reason="no libcudart"), "warn", "runtime unknown, driver unknown: no libcudart"),
    ],
)
def test_cuda_where_the_driver_is_loaded(
    tmp_path: Path, settings: StoreSettings, cuda: Cuda, status: str, value: str
) -> None:
    files = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64  570.1\nGCC version: 12\n",
        "proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: NVIDIA H200\n",
    }
    found = findings(RecordedHost(record(tmp_path, files)), settings, RecordedTrials(cuda=cuda))
    assert "1 GPUs" in found["nvidia driver"].value
    assert (found["cuda"].status.value, found["cuda"].value) == (status, value)
