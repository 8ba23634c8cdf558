"""Each step of the NVMe tier on the disk is the last of its process (kill -9). What was promised is
there, old or new and never mixed, and the accounts are right."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from ..kvstore.nvme.conftest import tmp_path as tmp_path
from ..kvstore.nvme.faults import Countdown, FaultyStorage, kill
from .nvme_scenarios import (
    DAMAGES,
    OLD,
    SCENARIOS,
    Scenario,
    Told,
    check,
    laid_out,
    lay_out_few,
    open_rig,
)


def run_child(directory: Path, scenario: Scenario, number: int) -> tuple[Told, bool]:
    """The scenario in a process that ends itself at the n-th change; what it promised, and whether
    it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            storage = FaultyStorage(Countdown(number, kill))
            rig = open_rig(directory, storage)
            storage.armed = True
            scenario.run(
                rig,
                lambda what, entry: os.write(writer, b"%s %s\n" % (what.encode(), entry)) and None,
            )
            rig.close()
        finally:
            os._exit(0)
    os.close(writer)
    told = Told(scenario.keeps)
    with os.fdopen(reader, "rb") as pipe:
        for line in pipe.read().splitlines():
            what, _, entry = line.partition(b" ")
            told(what.decode(), entry)
    _, status = os.waitpid(pid, 0)
    return told, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SCENARIOS)
def test_r44_kill_at_each_write_and_sync_leaves_old_or_new(
    tmp_path: Path, name: str, every: int
) -> None:
    scenario = SCENARIOS[name]
    template, points = laid_out(tmp_path, scenario)
    for number, point in list(enumerate(points, 1))[::every]:
        directory = tmp_path / str(number)
        shutil.copytree(template, directory)
        told, was_killed = run_child(directory, scenario, number)
        assert was_killed, (number, point)
        check(directory, told, set(scenario.removes))
        shutil.rmtree(directory)


@pytest.mark.parametrize("name", DAMAGES)
def test_r44_kill_at_each_step_of_an_open_loses_nothing(tmp_path: Path, name: str) -> None:
    template = tmp_path / "template"
    lay_out_few(template)
    DAMAGES[name](template)
    number, was_killed = 0, True
    while was_killed:
        number += 1
        directory = tmp_path / str(number)
        shutil.copytree(template, directory)
        pid = os.fork()
        if pid == 0:
            try:
                storage = FaultyStorage(Countdown(number, kill))
                storage.armed = True
                open_rig(directory, storage)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        was_killed = os.WIFSIGNALED(status)
        check(directory, Told(OLD), set())
        shutil.rmtree(directory)
    assert number > 1
