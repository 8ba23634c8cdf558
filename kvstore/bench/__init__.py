"""What every `moontide bench` takes, prints and writes."""

from .flags import check_effect, size_of
from .report import Report, Row, Spread, ratio_interval

__all__ = ["Report", "Row", "Spread", "check_effect", "ratio_interval", "size_of"]
