"""The thread pool that tokenises: bounded, and never in the loop's way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from moontide.conductor import tokenising
from moontide.conductor.errors import Overloaded
from moontide.conductor.tokenising import TokeniserPool

from ..waiting import until
from .fakes import in_loop


@in_loop
async def test_more_than_max_waiting_are_refused_at_once() -> None:
    release = threading.Event()
    with TokeniserPool(threads=1, max_waiting=2) as pool:
        running = [asyncio.create_task(pool.run(lambda: release.wait(20))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 prompts wait"):
            await pool.run(lambda: None)
        release.set()
        assert await asyncio.gather(*running) == [True, True]
        assert await pool.run(threading.current_thread) is not threading.main_thread()


@in_loop
async def test_r21_one_that_takes_too_long_is_given_up_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenising, "DEADLINE_SECONDS", 0.05)
    release = threading.Event()
    with TokeniserPool(threads=1, max_waiting=1) as pool:
        with pytest.raises(Overloaded, match=r"within 0\.05 s"):
            await pool.run(lambda: release.wait(20))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="1 prompts wait"):  # its thread is still busy
            await pool.run(lambda: None)
        release.set()
        monkeypatch.setattr(tokenising, "DEADLINE_SECONDS", 20.0)

        async def free() -> bool:
            try:
                return await pool.run(lambda: True)
            except Overloaded:
                return False

        await until(free, "the place is free again")


@in_loop
async def test_one_that_was_given_up_before_a_thread_began_frees_its_place() -> None:
    release, begun = threading.Event(), []
    with TokeniserPool(threads=1, max_waiting=2) as pool:
        first = asyncio.create_task(pool.run(lambda: release.wait(20)))
        second = asyncio.create_task(pool.run(lambda: begun.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        await asyncio.sleep(0)
        third = asyncio.create_task(pool.run(lambda: "third"))
        release.set()
        assert await first
        assert await third == "third"
        assert begun == []


@in_loop
async def test_what_the_work_raises_is_raised() -> None:
    def fails() -> None:
        raise LookupError("x")

    with TokeniserPool(threads=1, max_waiting=1) as pool:
        with pytest.raises(LookupError):
            await pool.run(fails)
        assert await pool.run(lambda: 3) == 3
