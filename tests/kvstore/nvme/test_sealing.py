"""What is written while a batch before it is made durable."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path

import pytest

from moontide.transfer import aligned_buffer

from .faults import FaultyStorage, disk_error
from .rig import MIB, Rig, names

ENTRIES = names(0, 5)
VALUE_BYTES = 64 << 10
GIVE_UP_SECONDS = 30.0


class HeldSync(FaultyStorage):
    """The first sync by the sealer waits for `go_on`; a later one meets `fault`."""

    def __init__(self, fault: bool) -> None:
        super().__init__(self._note)
        self.counts = {"sync": 0, "index": 0, "write": 0}
        self.go_on = threading.Event()
        self._fault = fault

    def _note(self, point: str) -> None:
        thread = threading.current_thread().name
        counted = "nvme-writer-" if point == "write" else "nvme-sealer"
        if point in self.counts and thread.startswith(counted):
            self.counts[point] += 1
        if point == "sync" and self.counts[point] == 1:
            assert self.go_on.wait(GIVE_UP_SECONDS)
        elif point == "sync" and self._fault:
            disk_error(point)


def value_of(entry: bytes) -> memoryview:
    value = aligned_buffer(VALUE_BYTES)
    value[:] = random.Random(entry).randbytes(VALUE_BYTES)
    return value


@pytest.mark.parametrize("fault", [False, True])
def test_what_is_put_while_a_batch_is_made_durable_becomes_durable_together(
    tmp_path: Path, fault: bool
) -> None:
    """By one sync and one transaction of the index, or not at all."""
    storage = HeldSync(fault)
    rig = Rig(tmp_path / "nvme", storage=storage)
    assert rig.put(b"first")  # there is a region
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    for number, entry in enumerate(ENTRIES, 1):
        assert rig.submit(entry, [value_of(entry)], partial(outcomes.__setitem__, entry))
        rig.wait(lambda number=number: storage.counts["write"] == number)  # a group of its own
    assert not outcomes
    storage.go_on.set()
    rig.wait(lambda: len(outcomes) == len(ENTRIES))
    storage.armed = False
    assert storage.counts == {"sync": 2, "index": 1 if fault else 2, "write": len(ENTRIES)}
    stored = ENTRIES[:1] if fault else ENTRIES
    assert [entry for entry in ENTRIES if outcomes[entry]] == stored
    for _ in range(2):  # also after a start
        found = dict(zip(ENTRIES, rig.get_many(ENTRIES), strict=True))
        assert {entry: value for entry, value in found.items() if entry in stored} == {
            entry: [bytes(value_of(entry))] for entry in stored
        }
        assert fault or rig.tier.stats().entries == len(ENTRIES) + 1
        rig.close()
        rig = Rig(tmp_path / "nvme")
    rig.close()


def test_more_than_a_header_has_room_for_becomes_batches_of_their_own(tmp_path: Path) -> None:
    storage = HeldSync(fault=False)
    rig = Rig(tmp_path / "nvme", storage=storage, capacity_bytes=64 * MIB, region_bytes=8 * MIB)
    assert rig.put(b"first")
    storage.armed = True
    outcomes: dict[bytes, bool] = {}
    entries = [entry * 60 for entry in ENTRIES]  # of which four do not fit into a page
    for number, entry in enumerate(entries, 1):
        assert rig.submit(entry, [value_of(entry)], partial(outcomes.__setitem__, entry))
        rig.wait(lambda number=number: storage.counts["write"] == number)
    storage.go_on.set()
    rig.wait(lambda: len(outcomes) == len(entries))
    assert all(outcomes.values())
    assert storage.counts["sync"] == 3
    rig.close()
    rig = Rig(tmp_path / "nvme", capacity_bytes=64 * MIB, region_bytes=8 * MIB)
    assert rig.get_many(entries) == [[bytes(value_of(entry))] for entry in entries]
    rig.close()
