"""Membership by files that several processes of one machine share."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moontide.kvstore.errors import Conflict, StoreTimeout
from moontide.kvstore.membership import FileMembership

from ...waiting import within
from .members import TTL_S, Clock, store

CLAIM = """
import sys
from pathlib import Path
from moontide.kvstore.errors import Conflict
from moontide.kvstore.membership import FileMembership, StoreRecord

def record(name):
    return StoreRecord(id=name, instance=sys.argv[2], admin_url="", data_address="", socket="")

membership = FileMembership(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
membership.register(record("own-" + sys.argv[2]), 60)
try:
    membership.register(record("shared"), 60)
    print("won", flush=True)
except Conflict:
    print("lost", flush=True)
sys.stdin.readline()
"""


def test_processes_share_a_directory_and_one_gets_the_name(directory: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(directory), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    told = [child.stdout.readline().strip() for child in children if child.stdout is not None]
    assert sorted(told) == ["lost", "lost", "won"]
    members = FileMembership(directory).members()
    assert [m.record.id for m in members] == ["own-0", "own-1", "own-2", "shared"]
    assert len({m.revision for m in members}) == 4
    for child in children:
        child.communicate("end\n", timeout=30)


def test_r59_a_killed_holder_is_taken_over_before_its_lease_ends(directory: Path) -> None:
    membership = FileMembership(directory)
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(directory), "killed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "ready\n"
        assert holder.stdout.readline() == "won\n"
        with pytest.raises(Conflict):
            membership.register(store("shared"), TTL_S)
        holder.kill()
    membership.register(store("shared"), TTL_S)
    assert len([m for m in membership.members() if m.record.id == "shared"]) == 1


def test_a_holder_killed_with_the_lock_blocks_nobody(directory: Path) -> None:
    membership = FileMembership(directory)
    pid = os.fork()
    if pid == 0:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    membership.register(store(), TTL_S)


def test_a_holder_that_keeps_the_lock_is_a_timeout(directory: Path) -> None:
    membership = FileMembership(directory)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with within(5.0), pytest.raises(StoreTimeout, match="lock was held"):
            membership.register(store(), TTL_S)
    finally:
        os.close(descriptor)
    assert membership.members() == []  # reading needs no lock


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"hello"),
        ("store-node-1.member", b""),
        ("store-node-1.member", b"{"),
        ("store-node-1.member", b"\xff" * 100),
        ("store-node-1.member", b"[" * 100_000),
        ("store-node-1.member", b'{"format": 2}'),
        ("other-x.member", b"{}"),
    ],
)
def test_a_foreign_or_damaged_file_is_ignored_and_reported_once(
    directory: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes
) -> None:
    membership = FileMembership(directory)
    membership.register(store(), TTL_S)
    (directory / name).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert [m.record.id for m in membership.members()] == ["node-0"]
    assert [record.getMessage() for record in caplog.records] == [
        f"membership_file_ignored path={directory / name}"
    ]
    assert (directory / name).read_bytes() == content


def test_a_copied_member_file_is_no_second_member(directory: Path) -> None:
    membership = FileMembership(directory)
    membership.register(store(), TTL_S)
    [path] = directory.glob("*.member")
    (directory / "store-node-9.member").write_bytes(path.read_bytes())
    assert [m.record.id for m in membership.members()] == ["node-0"]


def test_a_damaged_file_does_not_block_its_name(directory: Path) -> None:
    membership = FileMembership(directory)
    first = membership.register(store(), TTL_S)
    [path] = directory.glob("*.member")
    path.write_bytes(b"damaged")
    assert not membership.renew(first)
    assert membership.register(store(instance="other"), TTL_S).revision > first.revision


def test_a_lease_further_away_than_any_is_damaged(directory: Path, clock: Clock) -> None:
    membership = FileMembership(directory, clock=clock)
    membership.register(store(), TTL_S)
    clock.now -= 10_000
    assert membership.members() == []
    membership.register(store(instance="other"), TTL_S)


def test_members_of_an_earlier_boot_are_dead(directory: Path, clock: Clock) -> None:
    FileMembership(directory, clock=clock, boot=lambda: "boot-1").register(store(), TTL_S)
    after = FileMembership(directory, clock=clock, boot=lambda: "boot-2")
    assert after.members() == []
    after.register(store(instance="other"), TTL_S)


def test_r58_a_step_of_the_wall_clock_changes_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership = FileMembership(directory)
    held = membership.register(store(), TTL_S)
    for step in (-1e9, 1e9):
        monkeypatch.setattr(time, "time", lambda step=step: step)
        assert membership.renew(held)
        assert len(membership.members()) == 1


def test_revisions_go_on_when_the_counter_is_lost(directory: Path) -> None:
    membership = FileMembership(directory)
    first = membership.register(store(), TTL_S)
    for damage in (b"", b"x", None):
        path = directory / "revision"
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        second = membership.register(store(), TTL_S)
        assert second.revision > first.revision
        first = second


def test_r47_fifty_restarts_leave_one_record(directory: Path, clock: Clock) -> None:
    membership = FileMembership(directory, clock=clock)
    for number in range(50):
        membership.register(store(instance=f"life-{number}"), TTL_S)
        (directory / f".draft-{number}").write_bytes(b"killed while writing")
        clock.now += TTL_S
    membership.register(store(instance="last"), TTL_S)
    assert sorted(os.listdir(directory)) == [
        "lock",
        "revision",
        "store-node-0.alive",
        "store-node-0.member",
    ]


def test_damaged_floors_are_told_once_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    membership = FileMembership(tmp_path)
    membership.raise_floors(["aa"], {})
    (tmp_path / "floors").write_bytes(b"{not json")
    assert membership.floors() == membership.floors() == {}
    assert caplog.text.count("membership_file_ignored") == 1
    assert membership.raise_floors([], {"aa": 1}) == {"aa": 1}
    assert FileMembership(tmp_path).floors() == {"aa": 1}
