"""Moontide, as users have it: the daemon in a process of its own, this one its client.

Two clients: what one puts the other gets, so that a get of a value not asked for before knows
nothing of where it lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Protocol

from ....client import StoreClient, View, connect
from ....types import PutStatus
from ..areas import Area, filled
from ..contract import Failed
from ..serving import Driver, serve
from .memory import anonymous_bytes, shared_bytes
from .nvme import Disk
from .timing import Bench, Clock, ring_bytes

SLOTS = "moontide-slots"
TOUCH_BYTES = 4 << 20
CALL_SECONDS = 60.0


class Moontide:
    def __init__(self, writer: StoreClient, reader: StoreClient) -> None:
        self._writer = writer
        self._reader = reader

    def region(self, area: Area, offset: int, num_bytes: int) -> memoryview:
        return area.view[offset : offset + num_bytes]

    def put(self, key: str, value: memoryview) -> bool:
        return self._writer.put(key, value).status is PutStatus.STORED

    def put_many(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        results = self._writer.put_many(list(zip(keys, values, strict=True)))
        return sum(result.status is PutStatus.STORED for result in results)

    def get(self, key: str, target: memoryview) -> bool:
        return self._reader.get_into(key, target) == len(target)

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> int:
        sizes = self._reader.get_many_into(keys, targets)
        return sum(size == len(target) for size, target in zip(sizes, targets, strict=True))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(self._reader.exists_many(keys))

    def remove_many(self, keys: Sequence[str]) -> None:
        self._writer.remove_many(keys)

    def clear(self) -> None:
        self._writer.clear()


class Viewer(Protocol):
    def view(self, key: str) -> View | None: ...


class Views:
    """Values read in place: nothing is copied, one byte is looked at."""

    def __init__(self, writer: StoreClient, reader: StoreClient) -> None:
        self._writer = writer
        self._reader = reader
        self._numbers = itertools.count()

    def asked(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call, with its round trip and its release."""
        keys = self._entries(request)
        seconds = self._look_around(request, self._reader, keys)
        self._writer.remove_many(keys)
        return seconds

    def held(self, request: Mapping[str, Any]) -> list[float]:
        """Seconds of each call while a ticket pins them all."""
        keys = self._entries(request)
        with self._reader.pin(keys) as pinned:
            seconds = self._look_around(request, pinned, keys)
        self._writer.remove_many(keys)
        return seconds

    def _look_around(
        self, request: Mapping[str, Any], viewer: Viewer, keys: Sequence[str]
    ) -> list[float]:
        clock, asked = Clock(request), itertools.cycle(keys)
        while not clock.is_done():
            clock.time(lambda: _look(viewer, next(asked)), 1)
        return clock.seconds

    def _entries(self, request: Mapping[str, Any]) -> list[str]:
        size = request["size_bytes"]
        source = filled(ring_bytes(size, 1))
        keys = []
        for offset in range(0, len(source), size):
            keys.append(f"v{next(self._numbers)}")
            _stored(self._writer, keys[-1], source.view[offset : offset + size])
        for key in keys:  # touches the mapping
            _look(self._reader, key)
        return keys


class Cold:
    """First puts and gets of new clients: nothing mapped, no page touched."""

    def __init__(self, address: str, writer: StoreClient) -> None:
        self._address = address
        self._writer = writer

    def put(self, request: Mapping[str, Any]) -> list[float]:
        source = filled(request["size_bytes"])
        return self._time(request, lambda client: _stored(client, "cold", source.view))

    def get(self, request: Mapping[str, Any]) -> list[float]:
        target = Area(request["size_bytes"])
        _stored(self._writer, "cold", filled(request["size_bytes"]).view)
        return self._time(request, lambda client: _got(client, "cold", target.view))

    def _time(self, request: Mapping[str, Any], call: Callable[[StoreClient], int]) -> list[float]:
        clock = Clock(request)
        while not clock.is_done():
            with connect(self._address, timeout_s=CALL_SECONDS) as client:
                client.exists("cold")  # connected
                clock.time(partial(call, client), 1)
                if request["do"] == "cold_put":
                    client.remove("cold")
        self._writer.remove("cold")
        return clock.seconds


class FullPool:
    """How much has to go when one large value comes into a full pool."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def largest(self, request: Mapping[str, Any]) -> list[float]:
        """Evicted bytes ÷ put bytes of each put. The pool has to be full."""
        source = filled(request["size_bytes"])
        ratios = []
        for number in range(request["calls"]):
            before = self._used_bytes()
            _stored(self._client, f"large{number}", source.view)
            ratios.append((before + len(source) - self._used_bytes()) / len(source))
        return ratios

    def _used_bytes(self) -> int:
        used: int = self._client.stats()["tiers"]["dram"]["used_bytes"]
        return used


def begin(request: Mapping[str, Any]) -> Driver:
    address, pid = request["address"], request["daemon_pid"]
    writer = connect(address, timeout_s=CALL_SECONDS, checksums=request["checksums"])
    reader = connect(address, timeout_s=CALL_SECONDS)
    if request["touch"]:
        touch_all(writer, reader, request["pool_bytes"])
    views, cold, full = Views(writer, reader), Cold(address, writer), FullPool(writer)
    disk = Disk(writer, reader)

    def memory(_: Mapping[str, Any]) -> int:
        """Of the daemon, header slots included; the values lie in the pool's memory files."""
        return anonymous_bytes(pid) + shared_bytes(pid, SLOTS)

    def close() -> None:
        writer.close()
        reader.close()

    bench = Bench(Moontide(writer, reader), request["area_bytes"])
    return Driver(
        metadata.version("moontide"),
        {
            **bench.operations(),
            "memory": memory,
            "view": views.asked,
            "view_held": views.held,
            "cold_put": cold.put,
            "cold_get": cold.get,
            "largest": full.largest,
            "burst": disk.burst,
            "read_back": disk.read_back,
        },
        close=close,
    )


def touch_all(writer: StoreClient, reader: StoreClient, pool_bytes: int) -> None:
    """Both clients map and touch what they will use: warm mappings."""
    value = Area(min(TOUCH_BYTES, pool_bytes // 8))
    keys = [f"touch{number}" for number in range(pool_bytes * 9 // 10 // len(value))]
    for key in keys:
        writer.put(key, value.view)
    for key in keys:
        reader.get_into(key, value.view)
    writer.clear()


def _look(viewer: Viewer, key: str) -> int:
    view = viewer.view(key)
    if view is None:
        raise Failed(f"a view of {key} is a miss")
    with view:
        return len(view.data[:1])


def _stored(client: StoreClient, key: str, value: memoryview) -> int:
    result = client.put(key, value)
    if result.status is not PutStatus.STORED:
        raise Failed(f"a put of {len(value)} bytes was {result.status.name}: {result.reason}")
    return 1


def _got(client: StoreClient, key: str, target: memoryview) -> int:
    return int(client.get_into(key, target) == len(target))


if __name__ == "__main__":
    serve(begin)
