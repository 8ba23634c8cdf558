"""Clocks: deadlines, heartbeats and leases run by the monotonic one."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..proc import time_offsets
from ..types import Case, Finding, Status

SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
MAX_RESOLUTION_SECONDS = 1e-6
_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"


class Clocks:
    def examine(self, case: Case) -> Iterator[Finding]:
        yield self._source(case)
        resolution = time.get_clock_info("monotonic").resolution
        is_fine = resolution <= MAX_RESOLUTION_SECONDS
        yield Finding(
            "monotonic clock",
            f"resolution {resolution:g} s",
            f"{MAX_RESOLUTION_SECONDS:g} s or finer",
            Status.OK if is_fine else Status.WARN,
            "" if is_fine else "choose another clock source",
        )
        if refusal := case.trials.read_clock():
            fix = (
                "run chrony or systemd-timesyncd: logs and the daily write budget go by this clock"
            )
            yield Finding("wall clock", refusal, "synchronised", Status.WARN, fix)
        else:
            yield Finding("wall clock", "synchronised", "synchronised")
        yield self._namespace(case)

    def _source(self, case: Case) -> Finding:
        source = case.host.text(_SOURCE)
        if source in SLOW_SOURCES:
            fix = "boot with clocksource=tsc (or kvm-clock): reading this one takes microseconds"
            return Finding("clock source", source, "tsc, kvm-clock or alike", Status.WARN, fix)
        return Finding("clock source", source or "not told", "tsc, kvm-clock or alike")

    def _namespace(self, case: Case) -> Finding:
        shifted = {
            k: v for k, v in time_offsets(case.host.text("proc/self/timens_offsets")).items() if v
        }
        if shifted:
            fix = "run store and engines in one time namespace: they compare monotonic clocks"
            value = ", ".join(
                f"{clock} shifted by {seconds} s" for clock, seconds in shifted.items()
            )
            return Finding("time namespace", value, "the machine's own", Status.WARN, fix)
        return Finding("time namespace", "the machine's own", "the machine's own")
