"""Admin REST of the store daemon (aiohttp, through the service kit)."""

from .api import AdminApi, Operated
from .report import StoreReport

__all__ = ["AdminApi", "Operated", "StoreReport"]
