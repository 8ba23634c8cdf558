"""Who keeps a member's lease."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from moontide.kvstore.errors import Conflict
from moontide.kvstore.membership import FileMembership, Keeper, MemoryMembership

from ...waiting import until
from .members import TTL_S, Clock, store, worker


def test_r29_a_keeper_registers_again_after_a_wipe(directory: Path) -> None:
    async def scenario() -> None:
        membership = FileMembership(directory)
        keeper = Keeper(membership, store(), ttl_s=0.3)
        await keeper.start()
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        assert membership.members() == []
        await until(lambda: len(membership.members()) == 1)
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
        await until(lambda: [m.record for m in membership.members()] == [changed])
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
        await until(lambda: keeper.is_held)
        assert lapses == []
        clock.now += 5.0
        await until(lambda: len(membership.members()) == 1)
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
        await until(lambda: len(membership.members()) == 1)
        assert lapses == [1]
        await keeper.close()

    asyncio.run(scenario())


def test_a_keeper_whose_name_is_taken_does_not_start(clock: Clock) -> None:
    async def scenario() -> None:
        membership = MemoryMembership(clock)
        membership.register(store(instance="other"), TTL_S)
        with pytest.raises(Conflict):
            await Keeper(membership, store(), ttl_s=TTL_S).start()

    asyncio.run(scenario())
