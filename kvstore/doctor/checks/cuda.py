"""CUDA, for engines on this node. The store needs none."""

from __future__ import annotations

from collections.abc import Iterator

from ..types import Case, Finding, Status

_DRIVER = "proc/driver/nvidia/version"
_GPUS = "proc/driver/nvidia/gpus"


class CudaCheck:
    def examine(self, case: Case) -> Iterator[Finding]:
        driver = case.host.text(_DRIVER).partition("\n")[0]
        if not driver:
            yield Finding("cuda", "none", "none: engines run on the CPU")
            return
        gpus = len(case.host.names(_GPUS))
        yield Finding("nvidia driver", f"{driver.strip()}; {gpus} GPUs", "any")
        found = case.trials.find_cuda()
        versions = f"runtime {_shown(found.runtime_version)}, driver {_shown(found.driver_version)}"
        needed = "a runtime the driver takes, and a device"
        if found.reason:
            fix = "install the CUDA runtime, give the container its GPUs (--gpus all)"
            yield Finding("cuda", f"{versions}: {found.reason}", needed, Status.WARN, fix)
        elif not found.num_devices or found.runtime_version // 1000 > found.driver_version // 1000:
            fix = "upgrade the driver, or make a device visible (CUDA_VISIBLE_DEVICES)"
            value = f"{versions}, {found.num_devices} devices"
            yield Finding("cuda", value, needed, Status.WARN, fix)
        else:
            yield Finding("cuda", f"{versions}, {found.num_devices} devices", needed)


def _shown(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}" if version else "unknown"
