"""Kernel and packages."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from ..types import Case, Finding, Status

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)$")
LEAST_PYTHON = (3, 11)


class Kernel:
    """What the store asks the kernel for, and what it would use if it could."""

    def examine(self, case: Case) -> Iterator[Finding]:
        release = case.host.text("proc/sys/kernel/osrelease") or platform.release()
        if refusal := case.trials.watch_process():
            fix = "Linux 5.3 or newer, and a seccomp profile that allows pidfd_open"
            yield Finding("pidfd", f"{refusal} ({release})", "pidfd_open", Status.FAIL, fix)
        else:
            yield Finding("pidfd", f"works ({release})", "pidfd_open: a client's end is seen")
        refusal = case.trials.set_up_io_uring()
        yield Finding(
            "io_uring", refusal or "allowed", "any: files are read and written with POSIX calls"
        )


class Versions:
    def examine(self, case: Case) -> Iterator[Finding]:
        del case  # packages are this interpreter's, whatever the host
        python = ".".join(map(str, sys.version_info[:3]))
        yield Finding("python", python, f"{LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer")
        outdated = list(unmet(metadata.requires("moontide") or []))
        if outdated:
            fix = "pip install --upgrade moontide"
            yield Finding("packages", "; ".join(outdated), "as required", Status.FAIL, fix)
        else:
            yield Finding("packages", "as required", "as required")


def unmet(requirements: list[str]) -> Iterator[str]:
    """Of those that always hold (no marker) and name a least version."""
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement.replace(" ", ""))
        if match is None:
            continue
        name, least = match.groups()
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"{name} is missing, {least} is needed"
            continue
        if _numbers(found) < _numbers(least):
            yield f"{name} is {found}, {least} is needed"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])
