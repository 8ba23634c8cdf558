"""What every `moontide bench` prints and writes."""

from .report import Report, Row, Spread, ratio_interval

__all__ = ["Report", "Row", "Spread", "ratio_interval"]
