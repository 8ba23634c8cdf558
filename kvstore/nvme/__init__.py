"""The NVMe tier: a log of region files with an LMDB index, behind `NvmeTier`."""

from .residency import MAX_LOCKED_BYTES
from .settings import MAX_REGIONS, NvmeSettings, region_bytes_for
from .tier import NvmeTier
from .types import ExtentRead, NvmeEntry, NvmeLocation, NvmeStats, NvmeWrite

__all__ = [
    "MAX_LOCKED_BYTES",
    "MAX_REGIONS",
    "ExtentRead",
    "NvmeEntry",
    "NvmeLocation",
    "NvmeSettings",
    "NvmeStats",
    "NvmeTier",
    "NvmeWrite",
    "region_bytes_for",
]
