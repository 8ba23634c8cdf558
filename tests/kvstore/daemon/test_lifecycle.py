"""Starts that cannot work end in one clear line; stops are prompt and leave nothing (R12, R18, R24,
R28, R64, R67, R70, R76)."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore import wire
from moontide.kvstore.daemon.data_dir import read_state
from moontide.kvstore.membership import StoreRecord, open_membership
from moontide.kvstore.types import PutStatus

from ...prepared_process import PreparedProcess
from ...store_process import StartStore, StoreProcess, shared_memory_names
from ...waiting import wait_until, within
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client


def refused(daemon: StoreProcess, *flags: str) -> str:
    """The one line a start with these flags ends in."""
    said = daemon.log.with_name("refused.log")
    said.unlink(missing_ok=True)
    status = PreparedProcess(daemon.arguments(*flags), said).wait(60.0)
    return only_line(status, said.read_text())


def refused_from_nothing(daemon: StoreProcess, *flags: str, **options: Any) -> str:
    """As `refused`, for a process made with these options of subprocess.run."""
    ended = subprocess.run(
        daemon.command(*flags), capture_output=True, text=True, timeout=60, check=False, **options
    )
    return only_line(ended.returncode, ended.stderr)


def only_line(status: int, said: str) -> str:
    assert status > 0, (status, said)  # by its own decision, not a signal
    lines = said.strip().splitlines()
    assert len(lines) == 1, said
    return lines[0]


@pytest.fixture
def unstarted(tmp_path: Path) -> StoreProcess:
    return StoreProcess(tmp_path, tmp_path / "s", ("--dram", "8MiB", "--segment", "1MiB"))


# -- starting ---------------------------------------------------------------------


def test_r64_a_second_daemon_on_a_data_dir_ends_before_touching_it(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    first = store_daemon()
    before = {path: path.stat().st_mtime_ns for path in first.data_dir.rglob("*")}
    line = refused(first, "--socket", str(tmp_path / "other.sock"))
    assert str(first.data_dir) in line
    assert str(first.pid) in line
    assert {path: path.stat().st_mtime_ns for path in first.data_dir.rglob("*")} == before
    with local_client(first.socket) as client:
        assert client.put("a", b"value")[0] == PutStatus.STORED


def test_a_second_daemon_on_a_socket_is_refused_and_the_first_goes_on(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    first = store_daemon()
    line = refused(first, "--data-dir", str(tmp_path / "other"))
    assert f"another process listens on socket {first.socket}" in line
    with local_client(first.socket) as client:
        client.put("a", b"value")


def test_r70_more_memory_than_there_is_ends_naming_asked_and_available(
    unstarted: StoreProcess,
) -> None:
    line = refused(unstarted, "--dram", "4096GiB", "--segment", "64MiB")
    assert str(4096 << 30) in line or "4096GiB" in line
    assert "available" in line


def test_r70_an_address_space_limit_is_told_at_start(unstarted: StoreProcess) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    line = refused_from_nothing(unstarted, "--dram", "2GiB", "--segment", "64MiB", preexec_fn=limit)
    assert "available" in line or "memory" in line.lower()


def test_r70_too_few_open_files_end_the_start_naming_asked_and_allowed(
    unstarted: StoreProcess,
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))

    line = refused_from_nothing(unstarted, preexec_fn=limit)
    assert "2328 open files may be needed; 512 are allowed" in line
    assert "moontide doctor" in line


def test_r70_a_tier_larger_than_its_disk_ends_the_start_naming_asked_and_available(
    unstarted: StoreProcess,
) -> None:
    line = refused(unstarted, "--nvme", "255TiB", "--nvme-region", "1TiB")
    assert "255TiB" in line
    assert "bytes are available there" in line
    assert "moontide doctor" in line
    assert not (unstarted.data_dir / "nvme").exists()


def test_a_taken_port_is_named(unstarted: StoreProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("--admin", "--listen"):
            line = refused(unstarted, flag, address)
            assert address in line
            assert "taken" in line


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--nvme", "1MiB"), "NVMe tier needs at least"),
        (("--transports", "rdma"), "rdma"),
        (("--transports", "pigeon"), "pigeon"),
        (("--dram", "lots"), "lots"),
        (("--dram", "0"), "--dram='0': 0 is below the least allowed, 4KiB"),
        (("--segment", "1000"), "1000"),
        (("--dram", "1MiB", "--segment", "64MiB"), "segment"),
        (("--max-entries", "0"), "max"),
        (("--cluster", "carrier-pigeon"), "carrier-pigeon"),
        (("--socket", "/tmp/" + "x" * 120), "107"),
    ],
)
def test_r76_a_setting_that_cannot_be_is_named(
    unstarted: StoreProcess, flags: tuple[str, ...], named: str
) -> None:
    assert named in refused(unstarted, *flags)


def test_r76_unknown_flags_and_variables_are_named(unstarted: StoreProcess) -> None:
    ended = subprocess.run(
        unstarted.command("--drma", "1GiB"), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "--drma" in ended.stderr
    environment = os.environ | {"MOONTIDE_STORE_DRMA": "1GiB"}
    assert "MOONTIDE_STORE_DRMA" in refused_from_nothing(unstarted, env=environment)


# -- running ----------------------------------------------------------------------


def test_r24_two_daemons_on_one_address_are_told_apart(store_daemon: StartStore) -> None:
    """Memory is shared by handing over descriptors on the daemon's own socket, and every handover
    names the instance: equal addresses and node names prove nothing."""
    first, second = store_daemon(), store_daemon()
    welcomes = []
    for daemon in (first, second):
        with RawClient(f"unix:{daemon.socket}") as client:
            answer = client.hello()
            assert answer.message.instance == daemon.instance
            assert answer.message.shared_memory
            assert len(answer.descriptors) == 1
            welcomes.append((answer.message.instance, os.fstat(answer.descriptors[0]).st_ino))
        with RawClient(daemon.listen or "") as client:
            answer = client.hello(token=daemon.token)
            assert answer.message.instance == daemon.instance
            assert not answer.message.shared_memory
            assert not answer.descriptors
    assert welcomes[0][0] != welcomes[1][0]
    assert welcomes[0][1] != welcomes[1][1]
    with local_client(first.socket) as one, local_client(second.socket) as two:
        one.put("a", b"first")
        assert two.get("a") is None


def test_a_restart_is_another_instance(store_daemon: StartStore) -> None:
    daemon = store_daemon()
    before = daemon.instance
    with local_client(daemon.socket) as client:
        client.put("a", b"value")
        daemon.restart()
        with pytest.raises((EOFError, OSError)):
            client.get("a")
    assert daemon.instance != before
    with local_client(daemon.socket) as client:
        assert client.get("a") is None


def test_r18_a_killed_client_leaves_nothing(store_daemon: StartStore) -> None:
    """In each round a client process reserves, pins and maps, then dies at once."""
    daemon = store_daemon()
    admin = Admin(daemon.admin, daemon.token)
    with local_client(daemon.socket) as client:
        client.put("a", bytes(100_000))
    wait_until(lambda: admin.stats()["client_processes"] <= 1)
    descriptors = Path(f"/proc/{daemon.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        child = os.fork()
        if not child:
            with local_client(daemon.socket) as client:
                client.call(wire.Lookup([entry_id("a")], pin_s=0))
                reserved = client.call(wire.Reserve([entry_id("b")], [200_000])).message.results[0]
                client.call(wire.MapSegment(reserved[3], writable=True))
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    wait_until(lambda: admin.stats()["client_processes"] <= 1)
    stats = admin.stats()
    assert (stats["pins"], stats["in_flight"], stats["quarantined"]) == (0, 0, 0)
    assert stats["segments_granted"] == 0
    assert len(list(descriptors.iterdir())) <= before + 1
    admin.check_at_rest()
    with local_client(daemon.socket) as client:
        assert client.get("b") is None


def test_it_is_a_member_while_it_runs(store_daemon: StartStore, tmp_path: Path) -> None:
    address = f"file:{tmp_path / 'members'}"
    daemon = store_daemon("--cluster", address)
    state = read_state(daemon.data_dir)
    assert state is not None
    members = open_membership(address)
    (member,) = members.members()
    assert member.record == StoreRecord(
        id="node-a",
        instance=daemon.instance,
        admin_url=daemon.admin,
        data_address=daemon.listen or "",
        socket=str(daemon.socket),
        transfer_address=state.transfer or "",
    )
    other = StoreProcess(tmp_path, tmp_path / "o.sock", ("--dram", "8MiB", "--segment", "1MiB"))
    assert "node-a" in refused(other, "--cluster", address)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert members.members() == []


# -- stopping ---------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_r28_a_stop_is_prompt_clean_and_leaves_no_files(
    store_daemon: StartStore, number: signal.Signals
) -> None:
    daemon = store_daemon()
    admin = Admin(daemon.admin, daemon.token)
    with local_client(daemon.socket) as client:
        client.put("a", bytes(1000))
        assert admin.get("/readyz") == {"status": "ok"}
        with within(10.0):
            daemon.signal(number)
            assert daemon.wait() == 0
        with pytest.raises((EOFError, OSError)):
            client.get("a")
    assert not daemon.socket.exists()
    assert not (daemon.data_dir / "store.json").exists()
    assert "Traceback" not in daemon.log.read_text()


# -- memory that outlives things ----------------------------------------------------


def test_r12_a_reader_attached_to_a_killed_daemon_keeps_its_bytes(
    store_daemon: StartStore,
) -> None:
    daemon = store_daemon()
    value = os.urandom(100_000)
    with local_client(daemon.socket) as client:
        client.put("a", value)
        place = client.call(wire.Lookup([entry_id("a")], pin_s=0)).message.found[0]
        segment, offset = place[2], place[3]
        answer = client.call(wire.MapSegment(segment))
        memory = mmap.mmap(answer.descriptors[0], answer.message.num_bytes, access=mmap.ACCESS_READ)
        daemon.restart()
        with local_client(daemon.socket) as other:
            for index in range(16):  # the new daemon's whole pool
                other.put(f"k{index}", b"\xff" * (4 << 20))
        assert memory[offset : offset + len(value)] == value
        memory.close()


def test_r67_attached_processes_that_die_leave_nothing_in_dev_shm(
    store_daemon: StartStore,
) -> None:
    before = shared_memory_names()
    daemon = store_daemon()
    with local_client(daemon.socket) as client:
        client.put("a", b"value")
        for _ in range(3):
            child = os.fork()
            if not child:
                with local_client(daemon.socket) as attached:
                    attached.call(wire.MapSegment(0))
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
        assert client.get("a") == b"value"
    assert shared_memory_names() <= before
    daemon.kill()
    assert shared_memory_names() <= before
