"""One suite for every membership; a new one adds a line to MEMBERSHIPS."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.errors import Conflict, InvalidRequest, StoreTimeout
from moontide.kvstore.membership import (
    FileMembership,
    Keeper,
    Membership,
    MemoryMembership,
    StoreRecord,
    WorkerRecord,
    open_membership,
)

TTL_S = 6.0


@dataclass(slots=True)
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


MEMBERSHIPS: dict[str, Callable[[Path, Clock], Membership]] = {
    "memory": lambda path, clock: MemoryMembership(clock),
    "file": lambda path, clock: FileMembership(path / "cluster", clock=clock),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=MEMBERSHIPS)
def membership(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Membership:
    return MEMBERSHIPS[request.param](tmp_path, clock)


def store(name: str = "node-0", instance: str = "node-0/1/aa") -> StoreRecord:
    return StoreRecord(
        id=name,
        instance=instance,
        admin_url="http://127.0.0.1:7421",
        data_address="127.0.0.1:7420",
        socket="/run/moontide/store.sock",
    )


def worker(name: str = "worker-0", instance: str = "worker-0/2/bb") -> WorkerRecord:
    return WorkerRecord(
        id=name,
        instance=instance,
        url="http://127.0.0.1:7440",
        role="both",
        model="smollm2",
        node="node-0",
        store_instance="node-0/1/aa",
        namespace="00" * 32,
        block_tokens=64,
        tokenizer_digest="11" * 32,
        context_tokens=8192,
        max_running=8,
    )


# -- every membership -----------------------------------------------------------------


def test_registered_members_are_listed_by_kind_and_id(membership: Membership) -> None:
    records = [worker("b"), store("z"), worker("a"), store("a/ö %")]
    for record in records:
        membership.register(record, TTL_S)
    assert [m.record for m in membership.members()] == [records[3], records[1], *records[2::-2]]


def test_kinds_have_names_of_their_own(membership: Membership) -> None:
    membership.register(store("same"), TTL_S)
    membership.register(worker("same"), TTL_S)
    assert len(membership.members()) == 2


def test_a_lease_ends_unless_renewed(membership: Membership, clock: Clock) -> None:
    kept = membership.register(store("kept"), TTL_S)
    membership.register(store("lost"), TTL_S)
    clock.now += TTL_S - 0.1
    assert membership.renew(kept)
    clock.now += 0.1
    assert [m.record.id for m in membership.members()] == ["kept"]
    clock.now += TTL_S
    assert membership.members() == []
    assert not membership.renew(kept)


def test_r59_a_live_name_cannot_be_claimed_by_another(membership: Membership, clock: Clock) -> None:
    held = membership.register(store(), TTL_S)
    clock.now += TTL_S - 1
    with pytest.raises(Conflict, match=r"'node-0' is held by instance node-0/1/aa for .* 1\.0 s"):
        membership.register(store(instance="other"), TTL_S)
    assert membership.renew(held)


def test_r59_a_dead_name_is_taken_over_with_a_higher_revision(
    membership: Membership, clock: Clock
) -> None:
    former = membership.register(store(), TTL_S)
    clock.now += TTL_S
    latter = membership.register(store(instance="other"), TTL_S)
    assert latter.revision > former.revision
    assert not membership.renew(former)
    membership.leave(former)  # it no longer holds the name
    assert [m.record.instance for m in membership.members()] == ["other"]


def test_the_same_instance_may_tell_something_new(membership: Membership) -> None:
    former = membership.register(worker(), TTL_S)
    changed = msgspec.structs.replace(worker(), store_instance="node-0/9/cc")
    latter = membership.register(changed, TTL_S)
    assert latter.revision > former.revision
    assert not membership.renew(former)
    assert [m.record for m in membership.members()] == [changed]


def test_leaving_frees_the_name_at_once_and_revisions_go_on(membership: Membership) -> None:
    first = membership.register(store(), TTL_S)
    membership.leave(first)
    membership.leave(first)
    assert membership.members() == []
    second = membership.register(store(instance="other"), TTL_S)
    assert second.revision > first.revision


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_lease_time_out_of_bounds_is_refused(membership: Membership, ttl_s: float) -> None:
    with pytest.raises(InvalidRequest, match="ttl_s="):
        membership.register(store(), ttl_s)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "\0"])
def test_an_id_that_is_no_name_is_refused(membership: Membership, name: str) -> None:
    with pytest.raises(InvalidRequest, match="id"):
        membership.register(store(name), TTL_S)


def test_one_of_many_claims_wins(membership: Membership) -> None:
    outcomes: list[bool] = []

    def claim(number: int) -> None:
        try:
            membership.register(store(instance=f"i{number}"), TTL_S)
            outcomes.append(True)
        except Conflict:
            outcomes.append(False)

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(True) == 1
    assert len(outcomes) == 8


# -- file -----------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


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
    started = time.monotonic()
    try:
        with pytest.raises(StoreTimeout, match="lock was held"):
            membership.register(store(), TTL_S)
    finally:
        os.close(descriptor)
    assert time.monotonic() - started < 5
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


@pytest.mark.parametrize("address", ["", "file:", "files:/x", "memory:x", "/x", "etcd://h:1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="file:DIRECTORY"):
        open_membership(address)


def test_addresses_open_their_kind(tmp_path: Path) -> None:
    assert isinstance(open_membership("memory"), MemoryMembership)
    assert isinstance(open_membership(f"file:{tmp_path}/c"), FileMembership)


# -- keeper ---------------------------------------------------------------------------


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def _eventually(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(_until, condition)


def test_r29_a_keeper_registers_again_after_a_wipe(directory: Path) -> None:
    async def scenario() -> None:
        membership = FileMembership(directory)
        keeper = Keeper(membership, store(), ttl_s=0.3)
        await keeper.start()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        assert membership.members() == []
        await _eventually(lambda: len(membership.members()) == 1)
        await keeper.close()
        assert membership.members() == []

    asyncio.run(scenario())


def test_a_keeper_tells_what_changed(directory: Path) -> None:
    async def scenario() -> None:
        membership = FileMembership(directory)
        keeper = Keeper(membership, worker(), ttl_s=30)
        await keeper.start()
        changed = msgspec.structs.replace(worker(), store_instance="node-0/9/cc")
        keeper.update(changed)
        await _eventually(lambda: [m.record for m in membership.members()] == [changed])
        await keeper.close()

    asyncio.run(scenario())


def test_r58_a_keeper_knows_that_its_lease_may_have_ended(clock: Clock) -> None:
    async def scenario() -> None:
        keeper = Keeper(MemoryMembership(clock), store(), ttl_s=TTL_S, clock=clock)
        assert not keeper.is_held
        await keeper.start()
        assert keeper.is_held
        clock.now += TTL_S
        assert not keeper.is_held
        await keeper.close()

    asyncio.run(scenario())


def test_a_keeper_says_when_others_may_have_thought_it_gone(directory: Path) -> None:
    """Its process was stopped for longer than its lease."""

    async def scenario() -> None:
        clock, lapses = Clock(), []
        membership = FileMembership(directory, clock=clock)
        keeper = Keeper(
            membership, store(), ttl_s=0.6, clock=clock, on_lapse=lambda: lapses.append(clock.now)
        )
        await keeper.start()
        clock.now += 0.3
        await _eventually(lambda: keeper.is_held)
        assert lapses == []
        clock.now += 5.0
        await _eventually(lambda: len(membership.members()) == 1)
        assert len(lapses) == 1
        await keeper.close()

    asyncio.run(scenario())


def test_r29_a_keeper_whose_record_was_wiped_says_so_though_its_lease_had_not_ended(
    directory: Path,
) -> None:
    async def scenario() -> None:
        membership, lapses = FileMembership(directory), list[int]()
        keeper = Keeper(membership, store(), ttl_s=0.6, on_lapse=lambda: lapses.append(1))
        await keeper.start()
        shutil.rmtree(directory)
        await _eventually(lambda: len(membership.members()) == 1)
        assert lapses == [1]
        await keeper.close()

    asyncio.run(scenario())


def test_records_tell_where_the_pool_is_read(membership: Membership) -> None:
    told = msgspec.structs.replace(store(), transfer_address="127.0.0.1:7430")
    membership.register(told, TTL_S)
    assert [member.record for member in membership.members()] == [told]


def test_a_keeper_whose_name_is_taken_does_not_start(clock: Clock) -> None:
    async def scenario() -> None:
        membership = MemoryMembership(clock)
        membership.register(store(instance="other"), TTL_S)
        with pytest.raises(Conflict):
            await Keeper(membership, store(), ttl_s=TTL_S).start()

    asyncio.run(scenario())


# -- floors -----------------------------------------------------------------------


def test_a_floor_is_one_above_all_that_is_known(membership: Membership) -> None:
    assert membership.floors() == {}
    assert membership.raise_floors(["aa"], {}) == {"aa": 1}
    assert membership.raise_floors(["aa", "bb"], {"bb": 7, "cc": 2}) == {"aa": 2, "bb": 8, "cc": 2}
    assert membership.floors() == {"aa": 2, "bb": 8, "cc": 2}


def test_what_is_known_lifts_floors_and_never_lowers_them(membership: Membership) -> None:
    membership.raise_floors(["aa", "aa"], {})
    assert membership.raise_floors([], {"aa": 5}) == {"aa": 5}
    assert membership.raise_floors([], {"aa": 3}) == {"aa": 5}


def test_each_raise_gives_another_floor(membership: Membership) -> None:
    """Two stores that raise at the same time must not mean the same floor."""
    told: list[int] = []

    def raise_some() -> None:
        for _ in range(20):
            told.append(membership.raise_floors(["aa"], {})["aa"])

    threads = [threading.Thread(target=raise_some) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == list(range(1, 61))


def test_floors_have_a_bound(membership: Membership) -> None:
    membership.raise_floors([], {f"{number:04x}": 1 for number in range(4096)})
    with pytest.raises(InvalidRequest, match="4096"):
        membership.raise_floors(["ffff"], {})
    assert len(membership.floors()) == 4096


def test_floors_are_no_member_and_outlive_them(membership: Membership) -> None:
    registration = membership.register(store(), TTL_S)
    membership.raise_floors(["aa"], {})
    assert [member.record for member in membership.members()] == [store()]
    membership.leave(registration)
    assert membership.floors() == {"aa": 1}


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
