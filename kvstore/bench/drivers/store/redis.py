"""Redis: its server on a unix socket without persistence, redis-py with hiredis. What comes is then
copied to its target, as every reader of ours and of Mooncake's gets it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..areas import Area
from ..contract import Failed, foreign
from ..server import Server
from ..serving import Driver, serve
from .memory import anonymous_bytes
from .timing import Bench


class Redis:
    def __init__(self, client: Any) -> None:
        self._client = client

    def region(self, area: Area, offset: int, num_bytes: int) -> memoryview:
        return area.view[offset : offset + num_bytes]

    def put(self, key: str, value: memoryview) -> bool:
        return bool(self._client.set(key, value))

    def put_many(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        return len(keys) if self._client.mset(dict(zip(keys, values, strict=True))) else 0

    def get(self, key: str, target: memoryview) -> bool:
        value = self._client.get(key)
        if value is None:
            return False
        target[:] = value
        return True

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> int:
        values = self._client.mget(keys)
        for value, target in zip(values, targets, strict=True):
            if value is not None:
                target[:] = value
        return sum(value is not None for value in values)

    def count_existing(self, keys: Sequence[str]) -> int:
        return int(self._client.exists(*keys))

    def remove_many(self, keys: Sequence[str]) -> None:
        self._client.delete(*keys)

    def clear(self) -> None:
        self._client.flushall()


def begin(request: Mapping[str, Any]) -> Driver:
    library = foreign("redis")
    program = shutil.which("redis-server")
    if program is None:
        raise Failed("redis-server is not installed: apt-get install redis-server")
    directory = tempfile.TemporaryDirectory(prefix="moontide-bench-redis-")
    path = Path(directory.name) / "redis.sock"
    limit = ["--maxmemory", str(request["pool_bytes"]), "--maxmemory-policy", "allkeys-lru"]
    large_batches = ["--client-query-buffer-limit", "2gb"]  # whose command is one message
    place = ["--port", "0", "--unixsocket", str(path), "--dir", directory.name]
    client = library.Redis(unix_socket_path=str(path))

    def is_ready() -> bool:
        try:
            return bool(client.ping())
        except library.exceptions.ConnectionError:
            return False

    server = Server([program, "--save", "", *place, *limit, *large_batches], is_ready)

    def close() -> None:
        client.close()
        server.close()
        directory.cleanup()

    bench = Bench(Redis(client), request["area_bytes"])
    return Driver(
        f"{client.info('server')['redis_version']}, redis-py {library.__version__}",
        {**bench.operations(), "memory": lambda _: anonymous_bytes(server.pid)},
        close=close,
    )


if __name__ == "__main__":
    serve(begin)
