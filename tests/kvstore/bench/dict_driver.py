"""A contestant whose store is a dict, run as a process; `sys.argv[1]` names what goes wrong."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from moontide.kvstore.bench.drivers.areas import Area
from moontide.kvstore.bench.drivers.serving import Driver, serve
from moontide.kvstore.bench.drivers.store.timing import Bench


class DictStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def region(self, area: Area, offset: int, num_bytes: int) -> memoryview:
        return area.view[offset : offset + num_bytes]

    def put(self, key: str, value: memoryview) -> bool:
        self.values[key] = bytes(value)
        return True

    def put_many(self, keys: Sequence[str], values: Sequence[memoryview]) -> int:
        return sum(self.put(key, value) for key, value in zip(keys, values, strict=True))

    def get(self, key: str, target: memoryview) -> bool:
        target[:] = self.values[key]
        return True

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> int:
        return sum(self.get(key, target) for key, target in zip(keys, targets, strict=True))

    def count_existing(self, keys: Sequence[str]) -> int:
        return sum(key in self.values for key in keys)

    def remove_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            del self.values[key]

    def clear(self) -> None:
        self.values.clear()


class Forgetful(DictStore):
    """Gives back other bytes than it took."""

    def put(self, key: str, value: memoryview) -> bool:
        return super().put(key, memoryview(bytes(len(value))))


class Lossy(DictStore):
    def put(self, key: str, value: memoryview) -> bool:
        return False


def begin(request: Mapping[str, Any]) -> Driver:
    if fault == "cannot begin":
        raise RuntimeError("no licence")
    stores = {"forgetful": Forgetful, "lossy": Lossy}
    print("a library's chatter")  # to stderr, whatever the library thinks
    bench = Bench(stores.get(fault, DictStore)(), request["area_bytes"])
    return Driver(
        "1.0",
        {
            **bench.operations(),
            "crash": lambda _: os._exit(3),
            "hang": lambda _: time.sleep(600),
            "noise": lambda _: os.write(answers, b"?\n"),
            "memory": lambda _: 1000,
        },
    )


fault = sys.argv[1] if len(sys.argv) > 1 else ""
answers = os.dup(1)  # past what serve() redirects

if __name__ == "__main__":
    serve(begin)
