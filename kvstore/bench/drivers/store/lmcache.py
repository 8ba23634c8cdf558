"""LMCache's LocalCPUBackend, in process: a dict of tensors in one pinned pool. No second process
can read it; it shows what a cache without a server takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from ..areas import Area
from ..contract import Failed, foreign
from ..serving import Driver, serve
from .timing import Bench


class LocalCpu:
    def __init__(self, pool_bytes: int) -> None:
        self._torch = foreign("torch")
        self._torch.set_num_threads(1)
        allocators = foreign("lmcache.v1.memory_allocators.mixed_memory_allocator")
        backends = foreign("lmcache.v1.storage_backend.local_cpu_backend")
        config = foreign("lmcache.v1.config").LMCacheEngineConfig.from_defaults(
            local_cpu=True, max_local_cpu_size=pool_bytes / (1 << 30)
        )
        self._format = foreign("lmcache.v1.memory_management").MemoryFormat.KV_2LTD
        self._key_type = foreign("lmcache.utils").CacheEngineKey
        pool = allocators.MixedMemoryAllocator(pool_bytes)
        self._backend = backends.LocalCPUBackend(config, None, "cpu", None, pool)

    def region(self, area: Area, offset: int, num_bytes: int) -> Any:
        return self._torch.frombuffer(
            area.memory, dtype=self._torch.uint8, count=num_bytes, offset=offset
        )

    def put(self, key: str, value: Any) -> bool:
        torch = self._torch
        shape = torch.Size([value.numel()])
        memory = self._backend.allocate(shape, torch.uint8, self._format, busy_loop=False)
        if memory is None:
            return False
        memory.tensor.copy_(value)
        self._backend.submit_put_task(self._key(key), memory)
        memory.ref_count_down()
        return True

    def put_many(self, keys: Sequence[str], values: Sequence[Any]) -> int:
        return sum(self.put(key, value) for key, value in zip(keys, values, strict=True))

    def get(self, key: str, target: Any) -> bool:
        memory = self._backend.get_blocking(self._key(key))
        if memory is None:
            return False
        target.copy_(memory.tensor)
        memory.ref_count_down()
        return True

    def get_many(self, keys: Sequence[str], targets: Sequence[Any]) -> int:
        return sum(self.get(key, target) for key, target in zip(keys, targets, strict=True))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(self._backend.contains(self._key(key)) for key in keys)

    def remove_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            if not self._backend.remove(self._key(key)):
                raise Failed(f"remove did not find {key}")

    def clear(self) -> None:
        for key in list(self._backend.hot_cache):  # its own clear() fails on keys like ours
            self._backend.remove(key)

    def _key(self, key: str) -> Any:
        return self._key_type("bench", 1, 0, hash(key), self._torch.uint8)


def begin(request: Mapping[str, Any]) -> Driver:
    bench = Bench(LocalCpu(request["pool_bytes"]), request["area_bytes"])
    return Driver(metadata.version("lmcache"), bench.operations())


if __name__ == "__main__":
    serve(begin)
