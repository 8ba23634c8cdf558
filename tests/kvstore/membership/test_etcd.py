"""Membership in etcd: what is its own beside the conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd3gw import Etcd3Client

from moontide.kvstore.errors import Conflict, InvalidRequest, StoreUnavailable
from moontide.kvstore.membership import Keeper, open_membership
from moontide.kvstore.membership.etcd import EtcdMembership

from ...etcd_process import EtcdProcess, etcd_process
from ...waiting import until, wait_until
from .members import TTL_S, store

SHORT_TTL_S = 1.0  # etcd makes about 2 of it


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with etcd_process(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture
def membership(etcd: EtcdProcess, request: pytest.FixtureRequest) -> EtcdMembership:
    return EtcdMembership([etcd.endpoint], prefix=request.node.name)


def _wipe(etcd: EtcdProcess, membership: str) -> None:
    host, port = etcd.endpoint.split(":")
    Etcd3Client(host, int(port), api_path="/v3/").delete_prefix(f"{membership}/")


def test_r47_of_fifty_lives_one_record_is_left(
    etcd: EtcdProcess, request: pytest.FixtureRequest
) -> None:
    """Each life is killed: it never leaves, its lease ends with it."""
    host, port = etcd.endpoint.split(":")
    client = Etcd3Client(host, int(port), api_path="/v3/")
    for number in range(50):
        life = EtcdMembership([etcd.endpoint], prefix=request.node.name)
        life.register(store(instance=f"life-{number}"), TTL_S)
        [(_, about)] = client.get_prefix(f"{request.node.name}/")
        client.post(client.get_url("/kv/lease/revoke"), json={"ID": about["lease"]})
    last = EtcdMembership([etcd.endpoint], prefix=request.node.name)
    last.register(store(instance="last"), TTL_S)
    assert [member.record.instance for member in last.members()] == ["last"]
    assert len(client.get_prefix(f"{request.node.name}/")) == 1


def test_a_lease_that_nobody_renews_ends(membership: EtcdMembership) -> None:
    held = membership.register(store(), SHORT_TTL_S)
    with pytest.raises(Conflict, match="at least"):
        membership.register(store(instance="other"), TTL_S)
    wait_until(lambda: membership.members() == [])
    assert not membership.renew(held)
    latter = membership.register(store(instance="other"), TTL_S)
    assert latter.revision > held.revision


def test_r29_who_was_wiped_is_told_when_it_renews_though_its_lease_lives(
    etcd: EtcdProcess, membership: EtcdMembership, request: pytest.FixtureRequest
) -> None:
    held = membership.register(store(), TTL_S)
    _wipe(etcd, request.node.name)
    assert not membership.renew(held)


def test_r29_a_keeper_registers_again_after_a_wipe(
    etcd: EtcdProcess, membership: EtcdMembership, request: pytest.FixtureRequest
) -> None:
    async def scenario() -> None:
        keeper = Keeper(membership, store(), ttl_s=0.3)
        await keeper.start()
        await asyncio.to_thread(_wipe, etcd, request.node.name)
        await until(lambda: len(membership.members()) == 1)
        await keeper.close()
        assert membership.members() == []

    asyncio.run(scenario())


def test_r29_a_keeper_outlives_a_restart_of_etcd(tmp_path: Path) -> None:
    async def scenario(etcd: EtcdProcess) -> None:
        membership = EtcdMembership([etcd.endpoint])
        keeper = Keeper(membership, store(), ttl_s=TTL_S)
        await keeper.start()
        await asyncio.to_thread(etcd.kill)
        with pytest.raises(StoreUnavailable, match="no etcd server answers"):
            membership.members()
        await asyncio.to_thread(etcd.start)
        await until(lambda: _ids(membership) == ["node-0"])
        keeper.update(store(instance="node-0/1/aa"))
        await keeper.close()
        assert membership.members() == []

    with etcd_process(tmp_path) as etcd:
        asyncio.run(scenario(etcd))


def _ids(membership: EtcdMembership) -> list[str]:
    try:
        return [member.record.id for member in membership.members()]
    except StoreUnavailable:
        return []


def test_a_server_that_is_away_is_passed_over(
    etcd: EtcdProcess, request: pytest.FixtureRequest
) -> None:
    membership = EtcdMembership(["127.0.0.1:1", etcd.endpoint], prefix=request.node.name)
    held = membership.register(store(), TTL_S)
    assert membership.renew(held)


def test_a_server_that_does_not_answer_ends_a_call(
    etcd: EtcdProcess, membership: EtcdMembership
) -> None:
    with etcd.stopped(), pytest.raises(StoreUnavailable, match=etcd.endpoint):
        membership.members()
    assert membership.members() == []


def test_what_others_put_there_is_no_member(
    etcd: EtcdProcess, membership: EtcdMembership, request: pytest.FixtureRequest
) -> None:
    host, port = etcd.endpoint.split(":")
    client = Etcd3Client(host, int(port), api_path="/v3/")
    client.put(f"{request.node.name}/members/store/foreign", b"\xff not ours")
    client.put(f"{request.node.name}/floors", b"neither")
    membership.register(store(), TTL_S)
    assert [member.record for member in membership.members()] == [store()]
    assert membership.floors() == {}
    assert membership.raise_floors(["aa"], {}) == {"aa": 1}


@pytest.mark.parametrize("servers", ["", "h:x", "h:0", ":1", ",".join(["h:1"] * 10)])
def test_servers_that_are_none_are_refused(servers: str) -> None:
    with pytest.raises(InvalidRequest, match="etcd server"):
        open_membership(f"etcd://{servers}")


def test_an_address_names_servers() -> None:
    assert isinstance(open_membership("etcd://a,b:1,[::1]:2379"), EtcdMembership)
