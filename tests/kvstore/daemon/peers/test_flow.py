"""The bound on bytes under way: first come, first served, and nothing is lost by giving up."""

from __future__ import annotations

import asyncio
import random

from moontide.kvstore.daemon.peers.flow import FlowLimit
from moontide.transfer.types import Priority


def test_the_bound_holds_and_all_get_their_turn_whoever_gives_up() -> None:
    rng, limit = random.Random(3), FlowLimit(100)
    most = 0

    async def one(num_bytes: int) -> None:
        nonlocal most
        await limit.take(num_bytes)
        most = max(most, limit.used_bytes)
        try:
            await asyncio.sleep(0)
        finally:
            limit.give_back(num_bytes)

    async def run() -> None:
        tasks = [asyncio.create_task(one(rng.randint(1, 60))) for _ in range(300)]
        for task in rng.sample(tasks, 100):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())
    assert most <= 100
    assert limit.used_bytes == 0


def test_one_that_is_larger_than_the_bound_goes_alone() -> None:
    async def run() -> list[str]:
        limit, order = FlowLimit(10), []
        await limit.take(5)
        large = asyncio.create_task(limit.take(50))
        small = asyncio.create_task(limit.take(1))
        for name, task in (("large", large), ("small", small)):
            task.add_done_callback(lambda _, name=name: order.append(name))
        await asyncio.sleep(0)
        assert not large.done()
        assert not small.done()  # it came later
        limit.give_back(5)
        await large
        await asyncio.sleep(0)
        assert not small.done()
        limit.give_back(50)
        await small
        return order

    assert asyncio.run(run()) == ["large", "small"]


def test_the_urgent_go_first_and_use_room_that_is_too_small_for_others() -> None:
    async def run() -> list[str]:
        limit, order = FlowLimit(10), []
        await limit.take(5)
        waiting = {
            "copy": asyncio.create_task(limit.take(8, Priority.BACKGROUND)),
            "fill": asyncio.create_task(limit.take(7)),
        }
        await asyncio.sleep(0)
        waiting["hand-off"] = asyncio.create_task(limit.take(4, Priority.URGENT))
        for name, task in waiting.items():
            task.add_done_callback(lambda _, name=name: order.append(name))
        await waiting["hand-off"]  # beside the first
        limit.give_back(9)
        await waiting["fill"]
        limit.give_back(7)
        await waiting["copy"]
        return order

    assert asyncio.run(run()) == ["hand-off", "fill", "copy"]
