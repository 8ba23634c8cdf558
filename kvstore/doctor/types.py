"""What a check looks at and what it finds."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ..daemon.settings import StoreSettings
from .host import Host
from .trials import Trials


class Status(enum.Enum):
    """FAIL: the store asked for cannot start, or not work. WARN: slower, or at risk."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report: what is, what it should be, and what to do when it is not."""

    check: str
    value: str
    needed: str
    status: Status = Status.OK
    fix: str = ""


class Report(msgspec.Struct, frozen=True):
    """`ok`: nothing failed."""

    ok: bool
    machine: str
    version: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A machine and the store that is to run on it."""

    host: Host
    trials: Trials
    store: StoreSettings


class Check(Protocol):
    """One question about a case. Raises nothing: what cannot be read is said in the finding."""

    def examine(self, case: Case) -> Iterator[Finding]: ...
