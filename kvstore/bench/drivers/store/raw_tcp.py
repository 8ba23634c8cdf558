"""The limit of remote puts and gets: one raw socket in Python, one round trip a value, nothing
verified and nothing looked up."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from ..areas import Area
from ..serving import Driver, serve
from ..transfer.contract import Remote
from ..transfer.halves import ServerHalf
from ..transfer.raw import Stream, serving, with_waitall
from .timing import Bench

Place = tuple[memoryview, int]


class RawTcp:
    """A value lies at the server where it lay in its source."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._offsets: dict[str, int] = {}

    def region(self, area: Area, offset: int, num_bytes: int) -> Place:
        return area.view[offset : offset + num_bytes], offset

    def put(self, key: str, value: Place) -> bool:
        view, offset = value
        self._stream.write(Remote.LANDING, offset, view)
        self._offsets[key] = offset
        return True

    def put_many(self, keys: Sequence[str], values: Sequence[Place]) -> int:
        return sum(map(self.put, keys, values))

    def get(self, key: str, target: Place) -> bool:
        self._stream.read(Remote.LANDING, self._offsets[key], target[0])
        return True

    def get_many(self, keys: Sequence[str], targets: Sequence[Place]) -> int:
        return sum(map(self.get, keys, targets))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(key in self._offsets for key in keys)

    def remove_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self._offsets[key]

    def clear(self) -> None:
        self._offsets.clear()


def begin(request: Mapping[str, Any]) -> Driver:
    server = ServerHalf(serving(with_waitall), request["area_bytes"])
    stream = Stream(server.hello["port"], with_waitall)

    def close() -> None:
        stream.close()
        server.close()

    bench = Bench(RawTcp(stream), request["area_bytes"])
    return Driver(f"Python {platform.python_version()}", bench.operations(), close=close)


if __name__ == "__main__":
    serve(begin)
