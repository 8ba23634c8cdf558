"""Between the DRAM tier and the NVMe tier: what goes down, what comes up, what ends on both."""

from .tiering import Tiering

__all__ = ["Tiering"]
