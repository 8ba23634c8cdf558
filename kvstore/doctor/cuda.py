"""CUDA as far as it can be seen without torch: the driver's files, and libcudart through ctypes.
The library is loaded only when asked for, and no device is touched."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
_PACKAGES = ("nvidia.cuda_runtime", "nvidia.cu13")
"""pip puts the library beside these, where the loader does not look."""


@dataclass(frozen=True, slots=True)
class Cuda:
    """Versions as 12040 for 12.4, 0 when unknown; `reason` says what is missing."""

    runtime_version: int = 0
    driver_version: int = 0
    num_devices: int = 0
    reason: str = ""


def find_cuda() -> Cuda:
    library = _load()
    if library is None:
        return Cuda(reason="no libcudart")
    status, devices = _ask(library.cudaGetDeviceCount)
    return Cuda(
        runtime_version=_ask(library.cudaRuntimeGetVersion)[1],
        driver_version=_ask(library.cudaDriverGetVersion)[1],
        num_devices=devices,
        reason=f"cudaGetDeviceCount says {status}" if status else "",
    )


def _load() -> ctypes.CDLL | None:
    for candidate in (*_NAMES, *map(str, _packaged())):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def _packaged() -> Iterator[Path]:
    for package in _PACKAGES:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (found.submodule_search_locations or ()) if found else ():
            yield from sorted(Path(folder).glob("lib/libcudart.so.*"))


def _ask(function: ctypes._NamedFuncPointer) -> tuple[int, int]:
    """(status, number) of a call that fills one int; the number is 0 when it fails."""
    number = ctypes.c_int(0)
    status = int(function(ctypes.byref(number)))
    return status, 0 if status else number.value
