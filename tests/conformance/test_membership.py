"""One suite for every membership; a new one adds a line to MEMBERSHIPS."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.errors import Conflict, InvalidRequest
from moontide.kvstore.membership import FileMembership, Membership, MemoryMembership
from moontide.kvstore.membership.etcd import EtcdMembership

from ..etcd_process import EtcdProcess, etcd_process
from ..kvstore.membership.members import TTL_S, Clock, store, worker

MEMBERSHIPS: dict[str, Callable[[Path, Clock], Membership]] = {
    "memory": lambda path, clock: MemoryMembership(clock),
    "file": lambda path, clock: FileMembership(path / "cluster", clock=clock),
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture(params=MEMBERSHIPS)
def timed(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Membership:
    """Those whose leases end by `clock`."""
    return MEMBERSHIPS[request.param](tmp_path, clock)


@pytest.fixture(params=[*MEMBERSHIPS, "etcd"])
def membership(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Membership:
    if request.param == "etcd":
        process: EtcdProcess = request.getfixturevalue("etcd")
        return EtcdMembership([process.endpoint], prefix=tmp_path.name)
    return MEMBERSHIPS[request.param](tmp_path, clock)


def test_registered_members_are_listed_by_kind_and_id(membership: Membership) -> None:
    records = [worker("b"), store("z"), worker("a"), store("a/ö %")]
    for record in records:
        membership.register(record, TTL_S)
    assert [m.record for m in membership.members()] == [records[3], records[1], *records[2::-2]]


def test_kinds_have_names_of_their_own(membership: Membership) -> None:
    membership.register(store("same"), TTL_S)
    membership.register(worker("same"), TTL_S)
    assert len(membership.members()) == 2


def test_a_lease_ends_unless_renewed(timed: Membership, clock: Clock) -> None:
    kept = timed.register(store("kept"), TTL_S)
    timed.register(store("lost"), TTL_S)
    clock.now += TTL_S - 0.1
    assert timed.renew(kept)
    clock.now += 0.1
    assert [m.record.id for m in timed.members()] == ["kept"]
    clock.now += TTL_S
    assert timed.members() == []
    assert not timed.renew(kept)


def test_r59_a_live_name_cannot_be_claimed_by_another(timed: Membership, clock: Clock) -> None:
    held = timed.register(store(), TTL_S)
    clock.now += TTL_S - 1
    with pytest.raises(Conflict, match=r"'node-0' is held by instance node-0/1/aa for .* 1\.0 s"):
        timed.register(store(instance="other"), TTL_S)
    assert timed.renew(held)


def test_r59_a_dead_name_is_taken_over_with_a_higher_revision(
    timed: Membership, clock: Clock
) -> None:
    former = timed.register(store(), TTL_S)
    clock.now += TTL_S
    latter = timed.register(store(instance="other"), TTL_S)
    assert latter.revision > former.revision
    assert not timed.renew(former)
    timed.leave(former)  # it no longer holds the name
    assert [m.record.instance for m in timed.members()] == ["other"]


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


def test_records_tell_where_the_pool_is_read(membership: Membership) -> None:
    told = msgspec.structs.replace(store(), transfer_address="127.0.0.1:7430")
    membership.register(told, TTL_S)
    assert [member.record for member in membership.members()] == [told]


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
