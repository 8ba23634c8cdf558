"""Two threads share what one would do: every index once, and the same errors."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from moontide.transfer import CopyHelper, checksum
from moontide.transfer.copy_helper import (
    LEAST_MEAN_BYTES,
    LEAST_SHARED_BYTES,
    PIECE_BYTES,
    Cores,
)

MANY_BYTES = 1 << 30
SECONDS = 10.0
POLL_SECONDS = 0.01


@pytest.fixture
def helper() -> Iterator[CopyHelper]:
    helper = CopyHelper(is_worthwhile=lambda: True)
    yield helper
    helper.close()


@pytest.mark.parametrize("num_bytes", [0, MANY_BYTES])
@pytest.mark.parametrize("count", [0, 1, 2, 100])
def test_every_index_is_acted_on_once(helper: CopyHelper, num_bytes: int, count: int) -> None:
    acted: list[int] = []
    helper.share(acted.append, count, num_bytes)
    assert sorted(acted) == list(range(count))


def test_what_an_act_raises_first_is_raised_when_all_have_ended(helper: CopyHelper) -> None:
    running = threading.Semaphore(0)

    def act(index: int) -> None:
        if index == 3:
            raise ValueError("three")
        running.release()

    with pytest.raises(ValueError, match="three"):
        helper.share(act, 1000, MANY_BYTES)
    helper.share(lambda index: running.release(), 10, MANY_BYTES)  # goes on serving


class Interrupt(Exception):
    """What a signal handler raises."""


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set when the first SIGUSR1 has raised Interrupt in the main thread."""
    event = threading.Event()

    def interrupt(*_: object) -> None:
        if not event.is_set():
            event.set()
            raise Interrupt

    former = signal.signal(signal.SIGUSR1, interrupt)
    yield event
    signal.signal(signal.SIGUSR1, former)


def test_an_interrupted_caller_waits_until_the_other_thread_has_ended(
    helper: CopyHelper, interrupted: threading.Event
) -> None:
    """It may then use the memory for something else."""
    caller = threading.get_ident()
    begun, waiting, returned = threading.Event(), threading.Event(), threading.Event()
    was_left: list[bool] = []

    def act(index: int) -> None:
        if threading.get_ident() == caller:
            assert begun.wait(SECONDS)
            waiting.set()
            return
        begun.set()
        assert waiting.wait(SECONDS)
        while not interrupted.wait(POLL_SECONDS):  # one that comes just before a wait is not seen
            signal.pthread_kill(caller, signal.SIGUSR1)
        was_left.append(returned.wait(0.1))

    with pytest.raises(Interrupt):
        helper.share(act, 2, MANY_BYTES)
    returned.set()
    assert was_left == [False]
    helper.share(lambda index: None, 100, MANY_BYTES)  # goes on serving


def test_others_act_alone_while_it_serves_one(helper: CopyHelper) -> None:
    """From within a shared batch, and by many threads at once."""
    sums = [0] * 6

    def act(index: int) -> None:
        inner: list[int] = []
        helper.share(inner.append, 5, MANY_BYTES)
        sums[index] = sum(inner)

    threads = [
        threading.Thread(target=helper.share, args=(act, len(sums), MANY_BYTES)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [10] * 6


@pytest.mark.parametrize(
    "size", [0, LEAST_SHARED_BYTES - 1, LEAST_SHARED_BYTES, 5 * PIECE_BYTES + 7]
)
def test_a_value_is_copied_and_summed_whole(helper: CopyHelper, size: int) -> None:
    source, target = random.Random(size).randbytes(size), memoryview(bytearray(size))
    assert helper.copy_and_checksum(target, source) == checksum(source)
    assert target == source
    target[:] = bytes(size)
    helper.copy(target, source)
    assert target == source


@pytest.mark.parametrize("size", [0, 100, PIECE_BYTES + 1, 2 * LEAST_SHARED_BYTES])
@pytest.mark.parametrize("method", ["copy", "copy_and_checksum"])
def test_it_tells_once_that_the_last_piece_is_due(
    helper: CopyHelper, method: str, size: int
) -> None:
    target = memoryview(bytearray(size))
    last: list[bytes] = []
    getattr(helper, method)(target, b"x" * size, lambda: last.append(bytes(target[-1:])))
    assert last == [b"\0"[:size]]  # which was not copied yet


def test_a_value_must_fit_its_destination(helper: CopyHelper) -> None:
    for copy in (helper.copy, helper.copy_and_checksum):
        with pytest.raises(ValueError, match=f"copy of 3 bytes into {LEAST_SHARED_BYTES}"):
            copy(memoryview(bytearray(LEAST_SHARED_BYTES)), b"abc")


def test_the_other_thread_joins_when_a_core_becomes_free() -> None:
    """Asked before items 0, 1, 2, 4, 8 and so on; the last is nobody's to share."""
    answers = [False, False, False, True]
    helper = CopyHelper(is_worthwhile=lambda: answers.pop(0))
    threads: list[int] = []
    both = threading.Barrier(2)

    def act(index: int) -> None:
        threads.append(threading.get_ident())
        if index in (4, 5):
            both.wait()

    helper.share(act, 6, MANY_BYTES)
    assert threads[:4] == [threading.get_ident()] * 4
    assert len(set(threads[4:])) == 2
    assert not answers
    helper.close()


def test_after_close_callers_act_alone() -> None:
    helper = CopyHelper(is_worthwhile=lambda: True)
    helper.share(lambda index: None, 2, MANY_BYTES)
    helper.close()
    helper.close()
    before = threading.active_count()
    acted: list[int] = []
    helper.share(acted.append, 5, MANY_BYTES)
    assert acted == [0, 1, 2, 3, 4]
    assert threading.active_count() == before


def test_what_it_opens_to_look_for_free_cores_is_closed_with_it() -> None:
    before = os.listdir("/proc/self/fd")
    helper = CopyHelper()
    helper.share(lambda index: None, 100, MANY_BYTES)
    helper.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_caller_that_is_interrupted_while_the_other_thread_starts_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = set(threading.enumerate())
    helper = CopyHelper(is_worthwhile=lambda: True)
    start = threading.Thread.start

    def start_interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_interrupted)
        with pytest.raises(Interrupt):
            helper.share(lambda index: None, 10, MANY_BYTES)
    helper.share(lambda index: None, 10, MANY_BYTES)
    others = set(threading.enumerate()) - before
    closing = threading.Thread(target=helper.close, daemon=True)
    closing.start()
    for thread in (closing, *others):
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_cores_count_as_busy_while_no_descriptor_is_left_to_look_with() -> None:
    machine = Cores()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert not machine.are_free()
        assert not machine.are_enough()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        machine.close()


def test_a_machine_whose_cores_all_have_work_is_busy() -> None:
    cores = os.cpu_count() or 1
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)
    ]
    machine = Cores()
    try:
        while machine.are_free():
            time.sleep(0.01)  # until all have started: the test's own limit ends it
    finally:
        machine.close()
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("count", "num_bytes"), [(9, LEAST_SHARED_BYTES - 1), (99, 99 * LEAST_MEAN_BYTES - 1)]
)
def test_few_bytes_and_small_values_are_not_shared(count: int, num_bytes: int) -> None:
    helper = CopyHelper(is_worthwhile=lambda: pytest.fail("asked"))
    acted: list[int] = []
    helper.share(acted.append, count, num_bytes)
    assert acted == list(range(count))
    helper.close()


def test_on_a_busy_machine_the_caller_acts_alone() -> None:
    helper = CopyHelper(is_worthwhile=lambda: False)
    before = threading.active_count()
    threads: set[int] = set()
    helper.share(lambda index: threads.add(threading.get_ident()), 9, MANY_BYTES)
    assert threads == {threading.get_ident()}
    assert threading.active_count() == before
    helper.close()
