"""The asyncio mirror of StoreClient: the same calls on a few threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from moontide.transfer import TlsFiles

from ..errors import Busy
from ..keys import Extra, Namespace, TokenIds
from ..layout import Shard
from ..types import IfExists, Instance, PutResult
from .async_pinned import AsyncPinnedKeys
from .blocks.async_store import AsyncBlockStore
from .clearing import ClearedNodes
from .copies import Checksums
from .deadline import Deadline, check_timeout
from .prefetching import PrefetchTier
from .store_client import Key, StoreClient, connect
from .view import View

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
NUM_THREADS = 4
MAX_CALLS = 1024


async def connect_async(
    address: str,
    *,
    token: str = "",
    timeout_s: float = 5.0,
    instance: Instance | None = None,
    checksums: Checksums = "on",
    tls: TlsFiles | None = None,
) -> AsyncClient:
    """Like `connect`, without blocking the event loop."""
    client = await asyncio.to_thread(
        connect,
        address,
        token=token,
        timeout_s=timeout_s,
        instance=instance,
        checksums=checksums,
        tls=tls,
    )
    return AsyncClient(client, timeout_s)


class AsyncClient:
    """Calls are those of StoreClient. At most MAX_CALLS wait at once: beyond, Busy. A cancelled
    call still ends by itself at its deadline. Buffers must not change until the call returns."""

    def __init__(self, client: StoreClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = check_timeout(timeout_s)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="moontide-async")
        self._lock = threading.Lock()  # guards the next
        self._num_calls = 0

    async def put(
        self,
        key: Key,
        data: Buffer,
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        replicas: int = 1,
        timeout_s: float | None = None,
    ) -> PutResult:
        return await self._call(
            timeout_s,
            self._client.put,
            key,
            data,
            if_exists=if_exists,
            ttl_s=ttl_s,
            soft_pin=soft_pin,
            replicas=replicas,
        )

    async def put_many(
        self,
        items: Sequence[tuple[Key, Buffer]],
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        replicas: int = 1,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        return await self._call(
            timeout_s,
            self._client.put_many,
            items,
            if_exists=if_exists,
            ttl_s=ttl_s,
            soft_pin=soft_pin,
            replicas=replicas,
        )

    async def get(self, key: Key, *, timeout_s: float | None = None) -> bytes | None:
        return await self._call(timeout_s, self._client.get, key)

    async def get_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> list[bytes | None]:
        return await self._call(timeout_s, self._client.get_many, keys)

    async def get_into(
        self, key: Key, buffer: Buffer, *, timeout_s: float | None = None
    ) -> int | None:
        return await self._call(timeout_s, self._client.get_into, key, buffer)

    async def get_many_into(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> list[int | None]:
        return await self._call(timeout_s, self._client.get_many_into, keys, buffers)

    async def view(self, key: Key, *, timeout_s: float | None = None) -> View | None:
        """The view itself is StoreClient's; its release does not wait."""
        return await self._call(timeout_s, self._client.view, key)

    async def pin(
        self, keys: Sequence[Key], *, ttl_s: float = 10.0, timeout_s: float | None = None
    ) -> AsyncPinnedKeys:
        pinned = await self._call(timeout_s, self._client.pin, keys, ttl_s=ttl_s)
        return AsyncPinnedKeys(pinned, self._call)

    async def exists(self, key: Key, *, timeout_s: float | None = None) -> bool:
        return await self._call(timeout_s, self._client.exists, key)

    async def exists_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> list[bool]:
        return await self._call(timeout_s, self._client.exists_many, keys)

    async def size(self, key: Key, *, timeout_s: float | None = None) -> int | None:
        return await self._call(timeout_s, self._client.size, key)

    async def remove(self, key: Key, *, timeout_s: float | None = None) -> bool:
        return await self._call(timeout_s, self._client.remove, key)

    async def remove_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        return await self._call(timeout_s, self._client.remove_many, keys)

    async def remove_blocks(
        self,
        namespace: Namespace,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        timeout_s: float | None = None,
    ) -> int:
        return await self._call(
            timeout_s,
            self._client.remove_blocks,
            namespace,
            token_ids,
            first_block=first_block,
            extra=extra,
        )

    async def clear(self, *, nodes: ClearedNodes = "all", timeout_s: float | None = None) -> int:
        return await self._call(timeout_s, self._client.clear, nodes=nodes)

    async def prefetch(
        self, keys: Sequence[Key], *, tier: PrefetchTier = "dram", timeout_s: float | None = None
    ) -> int:
        return await self._call(timeout_s, self._client.prefetch, keys, tier=tier)

    async def stats(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        return await self._call(timeout_s, self._client.stats)

    async def kv(
        self,
        namespace: Namespace,
        shard: Shard | Sequence[Shard] | None = None,
        *,
        replicas: int = 1,
        timeout_s: float | None = None,
    ) -> AsyncBlockStore:
        store = self._call(timeout_s, self._client.kv, namespace, shard, replicas=replicas)
        return AsyncBlockStore(await store)

    async def close(self) -> None:
        """Idempotent."""
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _call(
        self, timeout_s: float | None, call: Callable[..., T], *args: Any, **options: Any
    ) -> T:
        """The time spent waiting for a thread counts."""
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        name = getattr(call, "__name__", "the call")
        with self._lock:
            if self._num_calls >= MAX_CALLS:
                raise Busy(
                    f"{self._num_calls} calls wait, the limit; await some before making more"
                )
            self._num_calls += 1
        running = self._threads.submit(
            lambda: call(*args, **options, timeout_s=deadline.check(name))
        )
        running.add_done_callback(self._ended)  # also of one cancelled before it began
        return await asyncio.wrap_future(running)

    def _ended(self, call: Future[Any]) -> None:
        with self._lock:
            self._num_calls -= 1
