"""Three daemons and six clients in simulated trouble: whatever the seed, nothing read is wrong, no
call outlives its deadline, and at the end nothing is left over.

Seeds run in a process of their own, in which strings hash alike; what it prints says how to run one
again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_SEEDS = 20
HANGS_SECONDS = 570.0
"""However slow the machine is."""
SOAK_FIRST = 1000
SOAK_SEEDS_PER_PROCESS = 50


def simulate(first: int, count: int, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(first), str(count), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANGS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@cache
def told() -> str:
    return simulate(0, NUM_SEEDS)


@pytest.mark.timeout(600)
def test_nothing_is_wrong_in_20_worlds() -> None:
    assert told().count("wrong=0") == NUM_SEEDS


@pytest.mark.timeout(1200)
def test_a_seed_is_the_same_world_each_time() -> None:
    """Whatever worlds its process had before: what goes wrong in one of many can be seen again."""
    assert _digests(simulate(NUM_SEEDS - 1, 1)) == _digests(told())[-1:]


@pytest.mark.soak
def test_nothing_is_wrong_in_1000_worlds() -> None:
    for first in range(SOAK_FIRST, SOAK_FIRST + 1000, SOAK_SEEDS_PER_PROCESS):
        simulate(first, SOAK_SEEDS_PER_PROCESS, "--seconds", "10")


def _digests(told: str) -> list[str]:
    return re.findall("digest=([0-9a-f]+)", told)
