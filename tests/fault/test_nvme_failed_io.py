"""Each step of the NVMe tier on the disk fails once: in a put, a region switch, an eviction, a
removal, a recovery. What was promised is there, nothing is mixed, the accounts are right, and the
tier goes on."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from moontide.kvstore.errors import StoreUnavailable

from ..kvstore.nvme.conftest import tmp_path as tmp_path
from ..kvstore.nvme.faults import Countdown, Fault, FaultyStorage, disk_error, disk_full
from ..kvstore.nvme.rig import content
from .nvme_scenarios import (
    DAMAGES,
    ENTRY_BYTES,
    NEW,
    OLD,
    REGION_BYTES,
    SCENARIOS,
    Told,
    check,
    laid_out,
    lay_out_few,
    open_rig,
)


@pytest.mark.parametrize("fault", [disk_error, disk_full])
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_failed_io_of_a_step_fails_no_more_than_that_step(
    tmp_path: Path, name: str, fault: Fault
) -> None:
    scenario = SCENARIOS[name]
    template, points = laid_out(tmp_path, scenario)
    assert {"write", "sync", "index"} <= set(points)
    for number, _ in enumerate(points, 1):
        directory = tmp_path / str(number)
        shutil.copytree(template, directory)
        storage = FaultyStorage(Countdown(number, fault))
        rig = open_rig(directory, storage)
        storage.armed = True
        told = Told(OLD)
        scenario.run(rig, told)
        storage.armed = False
        may_miss = {*(entry.entry for entry in rig.removed), *scenario.removes}
        assert set(rig.hits([*OLD, *NEW])) >= told.stored() - may_miss
        rig.close()
        check(directory, told, may_miss)
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", DAMAGES)
def test_each_failed_io_of_an_open_loses_nothing(tmp_path: Path, name: str) -> None:
    """It fails or it works; the next one finds everything."""
    template = tmp_path / "template"
    lay_out_few(template)
    DAMAGES[name](template)
    number, is_over = 0, False
    while not is_over:
        number += 1
        directory = tmp_path / str(number)
        shutil.copytree(template, directory)
        countdown = Countdown(number, disk_error)
        storage = FaultyStorage(countdown)
        storage.armed = True
        with contextlib.suppress(StoreUnavailable):
            open_rig(directory, storage).close()
        is_over = len(countdown.points) < number
        check(directory, Told(OLD), set())
        shutil.rmtree(directory)
    assert number > 1


def test_content_of_the_scenarios_fits_their_regions() -> None:
    """Else no scenario would see more than one region."""
    entry = sum(extent.nbytes for extent in content(OLD[0]))
    assert entry <= ENTRY_BYTES < REGION_BYTES // 4
