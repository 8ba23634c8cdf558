"""Values that follow from their keys, and who reads them all the time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial

from moontide.kvstore import StoreClient, StoreError

from ..waiting import Lateness, wait_until

VALUE_BYTES = 64 << 10
CALL_SECONDS = 1.0
SLACK_SECONDS = 3.0
"""For a thread of a test, beyond the deadline that it gave and what its machine is late."""
SOON = 60.0
"""For what comes, however slow the machine is."""


def content(key: str) -> bytes:
    return random.Random(key).randbytes(VALUE_BYTES)


def read_all(client: StoreClient, keys: list[str]) -> None:
    """Each is read. On a busy machine a store may answer its neighbour too late for one call, which
    is then a miss."""
    for key in keys:
        wait_until(partial(is_read, client, key), SOON, partial(str, key))


def is_read(client: StoreClient, key: str) -> bool:
    """Now; else it is a miss."""
    value = client.get(key, timeout_s=20)
    assert value in (None, content(key)), f"{key} came with wrong bytes"
    return value is not None


class Reader:
    """Reads `keys` through one store, again and again, on its own thread. What a call gives is the
    value, or nothing, or an error, in time; anything else is a fault."""

    def __init__(self, client: StoreClient, keys: list[str]) -> None:
        self._client = client
        self._keys = keys
        self._stopped = threading.Event()
        self.came: Counter[str] = Counter()
        self.faults: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def await_reads(self, count: int) -> None:
        """So many more that gave the value."""
        wanted = self.came["value"] + count
        wait_until(lambda: self.came["value"] >= wanted, SOON, lambda: dict(self.came))

    def _run(self) -> None:
        rng = random.Random(0)
        with Lateness() as machine:
            while not self._stopped.is_set():
                key = rng.choice(self._keys)
                began = time.monotonic()
                self.came[self._read(key)] += 1
                ended = time.monotonic()
                took = ended - began - machine.between(began, ended)
                if took > CALL_SECONDS + SLACK_SECONDS:
                    self.faults.append(f"{key} took {took:.1f} s")

    def _read(self, key: str) -> str:
        try:
            value = self._client.get(key, timeout_s=CALL_SECONDS)
        except StoreError as error:
            return error.code
        if value is None:
            return "miss"
        if value != content(key):
            self.faults.append(f"{key} came with wrong bytes")
        return "value"
