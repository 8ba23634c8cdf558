"""Admin REST of the store daemon (aiohttp, through the service kit)."""

from .api import AdminApi
from .report import StoreReport

__all__ = ["AdminApi", "StoreReport"]
