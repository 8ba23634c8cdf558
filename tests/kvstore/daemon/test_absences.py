"""Which stores may believe what they have when they come back."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from moontide.kvstore.daemon.absences import Absences
from moontide.kvstore.membership import NODE_MARK, MemoryMembership


@pytest.fixture
def membership() -> MemoryMembership:
    return MemoryMembership(time.monotonic)


def test_who_was_absent_from_a_change_has_missed_it(
    membership: MemoryMembership, tmp_path: Path
) -> None:
    stores = {}
    for name in "abc":
        (tmp_path / name).mkdir()
        stores[name] = Absences(membership, tmp_path / name, name)
        assert stores[name].has_missed()  # it cannot know
        stores[name].enrol()
    assert not any(store.has_missed() for store in stores.values())
    barred = []
    for _ in range(2):
        stores["a"].bar(["a", "b"])
        assert [store.has_missed() for store in stores.values()] == [False, False, True]
        barred.append(membership.floors())
    assert barred[0] == barred[1]  # the second change writes nothing
    stores["c"].enrol()
    assert not stores["c"].has_missed()


def test_a_copy_of_the_directory_that_is_put_back_proves_nothing(
    membership: MemoryMembership, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    store = Absences(membership, tmp_path / "data", "a")
    store.enrol()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    store.enrol()  # when it starts again
    assert not store.has_missed()
    assert Absences(membership, tmp_path / "copy", "a").has_missed()


def test_marks_make_room_for_floors(membership: MemoryMembership, tmp_path: Path) -> None:
    """A store whose mark is gone forgets, as it does whose membership was wiped."""
    marks = {NODE_MARK + f"{number:04x}": 2 + number % 2 for number in range(4096)}
    membership.raise_floors((), marks)
    membership.raise_floors(["aa", "bb"], {})
    floors = membership.floors()
    assert (len(floors), floors["aa"], floors["bb"]) == (4096, 1, 1)
    assert [mark for mark in marks if mark not in floors] == list(marks)[1:5:2]  # odd ones
    store = Absences(membership, tmp_path, "a")
    store.enrol()
    assert not store.has_missed()
