"""A signal handler raises at each point of a call: the client works on, and nothing stays held."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from moontide.kvstore import PutStatus, StoreClient, connect

from ..kvstore.daemon.admin import Admin
from ..store_process import StartStore
from ..waiting import wait_until

SECONDS = 30.0
SIZES = [0, 10, 300, 5000, 70_000]
"""Packed ones and ones at pages."""
KEYS = [f"k{index}" for index in range(len(SIZES))]


class Interrupt(Exception):
    """What the handler raises."""


@contextlib.contextmanager
def interrupted(at: int) -> Iterator[list[str]]:
    """Raises Interrupt within, at the `at`-th place where the interpreter looks for signals: where
    a function begins, and where one of C has returned. Gives where that was, if it was."""
    points: list[str] = []
    count = itertools.count(1)

    def look(frame: FrameType, event: str, function: object) -> None:
        is_ours = (
            "/kvstore/" in frame.f_code.co_filename or "/transfer/" in frame.f_code.co_filename
        )
        if event in ("call", "c_return") and is_ours and next(count) == at:
            points.append(f"{frame.f_code.co_qualname}:{frame.f_lineno} {function}")
            raise Interrupt

    sys.setprofile(look)
    try:
        with contextlib.suppress(Interrupt):
            yield points
    finally:
        sys.setprofile(None)


def values_of(number: int) -> list[bytes]:
    rng = random.Random(number)
    return [rng.randbytes(size) for size in SIZES]


def put(client: StoreClient, number: int) -> None:
    client.put(KEYS[2], values_of(number)[2], if_exists="replace")


def put_many(client: StoreClient, number: int) -> None:
    client.put_many(list(zip(KEYS, values_of(number), strict=True)), if_exists="replace")


def put_large(client: StoreClient, number: int) -> None:
    client.put("large", random.Random(number).randbytes(4 << 20), if_exists="replace")


def get_many(client: StoreClient, number: int) -> None:
    client.get_many(KEYS)


def look_up(client: StoreClient, number: int) -> None:
    client.get_many(KEYS, timeout_s=SECONDS)
    client.exists_many(KEYS)


def view(client: StoreClient, number: int) -> None:
    with client.view(KEYS[3]) or contextlib.nullcontext():
        pass


def remove(client: StoreClient, number: int) -> None:
    client.remove_many(KEYS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of finalizers
@pytest.mark.parametrize("act", [put, put_many, put_large, get_many, look_up, view, remove])
def test_r17_an_interrupt_at_any_point_of_a_call_leaves_a_client_that_works(
    store_daemon: StartStore, act: Callable[[StoreClient, int], None]
) -> None:
    daemon = store_daemon()
    with connect(f"unix:{daemon.socket}", timeout_s=SECONDS) as client:
        put_many(client, 0)
        put_large(client, 0)
        number, was_reached = 0, True
        while was_reached:
            number += 1
            before = client.get_many(KEYS)
            with interrupted(number) as points:
                act(client, number)
            was_reached = bool(points)
            check_usable(client, number, before, points)
        assert number > 10
    admin = Admin(daemon.admin, daemon.token)
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.check_at_rest()
    assert admin.stats()["tiers"]["dram"]["reserved_bytes"] == 0  # runs, too, are over
    assert admin.stats()["segments_granted"] == 0  # nobody holds one any more


def check_usable(
    client: StoreClient, number: int, before: list[bytes | None], points: list[str]
) -> None:
    """What was there is there, or what the call put, or nothing."""
    for old, new, got in zip(before, values_of(number), client.get_many(KEYS), strict=True):
        assert got in (old, new, None), points
    value = b"%d" % number * 1000
    result = client.put("afterwards", value, if_exists="replace")
    assert result.status is PutStatus.STORED, points
    assert client.get("afterwards") == value, points
