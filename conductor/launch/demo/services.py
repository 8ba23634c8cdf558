"""What the demo asks of the worker and the store beside the chat itself."""

from __future__ import annotations

import time

import msgspec

from moontide.kvstore import Group

from ..errors import TimedOut
from .client import call

_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.05


class _TokenizerDocument(msgspec.Struct, frozen=True):
    model: str
    block_tokens: int
    layout: list[Group]


class _TierStats(msgspec.Struct, frozen=True):
    bytes_in: int = 0
    bytes_out: int = 0
    entries: int = 0


class _StoreStats(msgspec.Struct, frozen=True):
    tiers: dict[str, _TierStats]
    in_flight: int


class Services:
    """The one worker and the one store of the demo's cluster."""

    def __init__(self, worker_url: str, store_url: str, token: str) -> None:
        self._worker = worker_url
        self._store = store_url
        self._token = token
        document = call(worker_url, "GET", "/v1/tokenizer", _TokenizerDocument, token=token)
        self.model = document.model
        self.block_tokens = document.block_tokens
        self.kv_token_bytes = sum(
            group.num_layers * group.num_kv_heads * group.head_bytes(1) for group in document.layout
        )

    def dram(self) -> _TierStats:
        return self._stats().tiers.get("dram", _TierStats())

    def empty_engine_cache(self) -> None:
        """The worker forgets the blocks it holds itself; those in the store stay."""
        call(self._worker, "POST", "/v1/cache/clear", msgspec.Raw, token=self._token)

    def empty_store(self) -> None:
        call(self._store, "POST", "/v1/clear", msgspec.Raw, token=self._token)

    def settle(self) -> None:
        """Wait until everything the worker stores has been committed. Raises TimedOut."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (running := self._stats().in_flight) > 0:
            if time.monotonic() > deadline:
                raise TimedOut(f"{running} stores still run after {_SETTLE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)

    def _stats(self) -> _StoreStats:
        return call(self._store, "GET", "/v1/stats", _StoreStats, token=self._token)
