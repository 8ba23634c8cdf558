"""Between the DRAM tier and the NVMe tier: what goes down, what comes up, what ends on both."""

from .tiering import NOT_DURABLE, Tiering

__all__ = ["NOT_DURABLE", "Tiering"]
