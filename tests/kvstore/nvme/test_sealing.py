"""What is written while a batch before it is made durable."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from moontide.transfer import aligned_buffer

from .faults import Countdown, Fault, FaultyStorage, disk_error, kill
from .rig import MIB, Rig, names

ENTRIES = names(0, 5)
VALUE_BYTES = 64 << 10
GIVE_UP_SECONDS = 30.0
Done = Callable[[bytes, bool], None]


class HeldSync(FaultyStorage):
    """The first sync by the sealer waits for `go_on`; `then` is called at every step."""

    def __init__(self, then: Fault = lambda _: None) -> None:
        super().__init__(self._note)
        self.counts = {"sync": 0, "index": 0, "write": 0}
        self.go_on = threading.Event()
        self._then = then

    def _note(self, point: str) -> None:
        thread = threading.current_thread().name
        counted = "nvme-writer-" if point == "write" else "nvme-sealer"
        if point in self.counts and thread.startswith(counted):
            self.counts[point] += 1
        if point == "sync" and self.counts[point] == 1:
            assert self.go_on.wait(GIVE_UP_SECONDS)
        self._then(point)


def value_of(entry: bytes) -> memoryview:
    value = aligned_buffer(VALUE_BYTES)
    value[:] = random.Random(entry).randbytes(VALUE_BYTES)
    return value


def put_joining(rig: Rig, storage: HeldSync, entries: Sequence[bytes], done: Done) -> None:
    """Each in a group of its own, all while the first is made durable."""
    assert rig.put(b"first")  # there is a region
    storage.armed = True
    for number, entry in enumerate(entries, 1):
        assert rig.submit(entry, [value_of(entry)], partial(done, entry))
        rig.wait(lambda number=number: storage.counts["write"] == number)
    storage.go_on.set()


@pytest.mark.parametrize("fault", [False, True])
def test_what_is_put_while_a_batch_is_made_durable_becomes_durable_together(
    tmp_path: Path, fault: bool
) -> None:
    """By one sync and one transaction of the index, or not at all."""
    second_sync = Countdown(2, disk_error)
    storage = HeldSync(lambda point: second_sync(point) if fault and point == "sync" else None)
    rig = Rig(tmp_path / "nvme", storage=storage)
    outcomes: dict[bytes, bool] = {}
    put_joining(rig, storage, ENTRIES, outcomes.__setitem__)
    rig.wait(lambda: len(outcomes) == len(ENTRIES))
    storage.armed = False
    assert storage.counts == {"sync": 2, "index": 1 if fault else 2, "write": len(ENTRIES)}
    stored = ENTRIES[:1] if fault else ENTRIES
    assert [entry for entry in ENTRIES if outcomes[entry]] == stored
    for _ in range(2):  # also after a start
        assert rig.get_many(stored) == [[bytes(value_of(entry))] for entry in stored]
        assert fault or rig.tier.stats().entries == len(ENTRIES) + 1
        rig.close()
        rig = Rig(tmp_path / "nvme")
    rig.close()


def test_more_than_a_header_has_room_for_becomes_batches_of_their_own(tmp_path: Path) -> None:
    storage = HeldSync()
    sizes = {"capacity_bytes": 64 * MIB, "region_bytes": 8 * MIB}
    rig = Rig(tmp_path / "nvme", storage=storage, **sizes)  # type: ignore[arg-type]  # sizes
    outcomes: dict[bytes, bool] = {}
    entries = [entry * 60 for entry in ENTRIES]  # of which four do not fit into a page
    put_joining(rig, storage, entries, outcomes.__setitem__)
    rig.wait(lambda: len(outcomes) == len(entries))
    assert all(outcomes.values())
    assert storage.counts["sync"] == 3
    rig.close()
    rig = Rig(tmp_path / "nvme", **sizes)  # type: ignore[arg-type]  # sizes
    assert rig.get_many(entries) == [[bytes(value_of(entry))] for entry in entries]
    rig.close()


def join_in_child(directory: Path, number: int) -> list[bytes]:
    """In a process that ends itself at the n-th step; what it was told to be stored."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            storage = HeldSync(Countdown(number, kill))
            rig = Rig(directory, storage=storage)
            told: list[bytes] = []

            def done(entry: bytes, is_stored: bool) -> None:
                told.append(entry)
                os.write(writer, entry + b"\n" if is_stored else b"")

            put_joining(rig, storage, ENTRIES, done)
            rig.wait(lambda: len(told) == len(ENTRIES))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        stored = pipe.read().splitlines()
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return stored


def test_r44_kill_at_each_step_of_batches_that_join_leaves_whole_entries(tmp_path: Path) -> None:
    steps = Countdown(0, kill)
    storage = HeldSync(steps)
    rig = Rig(tmp_path / "count", storage=storage)
    outcomes: dict[bytes, bool] = {}
    put_joining(rig, storage, ENTRIES, outcomes.__setitem__)
    rig.wait(lambda: len(outcomes) == len(ENTRIES))
    num_steps = len(steps.points)
    rig.close()
    for number in range(1, num_steps + 1):
        directory = tmp_path / str(number)
        stored = join_in_child(directory, number)
        rig = Rig(directory)
        found = dict(zip(ENTRIES, rig.get_many(ENTRIES), strict=True))
        assert all(found[entry] for entry in stored)
        for entry, value in found.items():
            assert value in (None, [bytes(value_of(entry))])
        assert rig.hits([b"first"]) == [b"first"]
        rig.close()
        shutil.rmtree(directory)
