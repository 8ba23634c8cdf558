"""What the engine asks of a store: the part of `moontide.kvstore`'s KV client that never blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moontide.kvstore import BlockKey, JobId, JobResult, StoreHandle, Ticket


class KvJobs(Protocol):
    """Results come from `poll`, readiness from `fileno`. Any call may raise a StoreError. A buffer
    given to a job is untouched only after the job's result came."""

    def fileno(self) -> int: ...
    def poll(self) -> list[JobResult]: ...
    def cancel(self, job: JobId) -> None: ...

    def submit_lookup(
        self,
        token_ids: Sequence[int],
        *,
        pin_s: float,
        held: Ticket | None = None,
        deadline_s: float,
    ) -> JobId: ...
    def submit_fetch(
        self,
        token_ids: Sequence[int],
        *,
        source: str,
        request_block: BlockKey | None,
        first_block: int,
        pin_s: float,
        deadline_s: float,
    ) -> JobId: ...
    def renew(self, ticket: Ticket, *, ttl_s: float) -> None: ...
    def release(self, ticket: Ticket) -> None: ...
    def submit_load(
        self,
        ticket: Ticket,
        layers: Sequence[int],
        destinations: Sequence[Sequence[memoryview]],
        *,
        blocks: Sequence[int] | None,
        deadline_s: float,
    ) -> JobId: ...

    def begin_store(
        self, token_ids: Sequence[int], *, first_block: int, deadline_s: float
    ) -> StoreHandle: ...
    def begin_request_store(
        self, key: BlockKey, *, ttl_s: float, deadline_s: float
    ) -> StoreHandle: ...
    def submit_store(
        self,
        store: StoreHandle,
        layer: int,
        sources: Sequence[memoryview | None],
        *,
        deadline_s: float,
    ) -> JobId: ...
    def commit(self, store: StoreHandle) -> JobId: ...
    def abort(self, store: StoreHandle) -> None: ...

    def publish_hbm(
        self, stored_keys: Sequence[BlockKey], removed_keys: Sequence[BlockKey]
    ) -> None: ...
