"""A loop that looks for the next request before it sleeps."""

from __future__ import annotations

import asyncio
import os
import socket
import threading

import pytest

from moontide.kvstore import connect
from moontide.kvstore.daemon.turns import Turns
from moontide.kvstore.daemon.vigil import Vigil
from moontide.kvstore.polling import Polling

from ...store_process import StartStore

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on one core nobody looks: nothing to tell apart"
)
LONG_SECONDS = 10.0


def eager() -> Polling:
    """Whatever else runs on this machine."""
    return Polling(LONG_SECONDS, cores_are_enough=lambda: True)


def test_what_comes_soon_after_a_reply_is_found_before_the_loop_sleeps() -> None:
    asyncio.run(_find_next())


async def _find_next() -> None:
    loop = asyncio.get_running_loop()
    vigil = Vigil(loop, Turns(loop), eager())
    ours, theirs = socket.socketpair()
    found: asyncio.Future[bytes] = loop.create_future()
    try:
        vigil.watch(ours.fileno(), lambda: found.set_result(ours.recv(100)))
        vigil.served(idle_seconds=0.0)
        theirs.send(b"next")
        assert await found == b"next"  # nobody else watches the socket
    finally:
        vigil.unwatch(ours.fileno())
        vigil.close()
        ours.close()
        theirs.close()


def test_timers_come_due_while_one_client_keeps_the_loop_looking() -> None:
    asyncio.run(_keep_looking())


async def _keep_looking() -> None:
    loop = asyncio.get_running_loop()
    vigil = Vigil(loop, Turns(loop), eager())
    ours, theirs = socket.socketpair()
    try:

        def serve() -> None:
            ours.recv(100)
            vigil.served(idle_seconds=0.0)
            theirs.send(b"next")

        vigil.watch(ours.fileno(), serve)
        vigil.served(idle_seconds=0.0)
        theirs.send(b"first")
        await asyncio.sleep(0.005)
    finally:
        vigil.unwatch(ours.fileno())
        vigil.close()
        ours.close()
        theirs.close()


def test_a_loop_that_goes_on_after_the_vigil_looks_no_more() -> None:
    asyncio.run(_go_on())


async def _go_on() -> None:
    loop = asyncio.get_running_loop()
    failures: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    vigil = Vigil(loop, Turns(loop), eager())
    vigil.served(idle_seconds=0.0)
    vigil.close()
    await asyncio.sleep(0)
    assert failures == []


def test_two_clients_that_never_pause_are_both_served(store_daemon: StartStore) -> None:
    daemon = store_daemon()

    def ask(results: list[int]) -> None:
        with connect(f"unix:{daemon.socket}") as client:
            results.append(sum(client.exists(f"{number}") for number in range(2000)))

    asked: list[int] = []
    threads = [threading.Thread(target=ask, args=(asked,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert asked == [0, 0]
