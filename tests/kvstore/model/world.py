"""A real daemon, its clients in this process and one of its own, and what is known of the values:
where a machine's rules act."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from moontide.kvstore import BlockStore, PrefixHit, StoreClient, StoreHandle, View, connect

from ...store_process import store_processes
from ...waiting import wait_until
from ..daemon.admin import Admin
from .expected import Blocks, Moment, Strings
from .puppet import NAMESPACE, Puppet
from .values import value_of

SECONDS = 20.0
ROOMY = ("--dram", "128MiB", "--segment", "4MiB", "--nvme", "128MiB", "--nvme-region", "8MiB")
TIGHT = ("--dram", "4MiB", "--segment", "1MiB", "--nvme", "8MiB", "--nvme-region", "1MiB")
TIGHT_ENTRIES = ("--max-entries", "64")
T = TypeVar("T")


class World(RuleBasedStateMachine):
    failures: ClassVar[list[BaseException]] = []

    @initialize(keeps=st.booleans())
    def start(self, keeps: bool) -> None:
        self.stack = contextlib.ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        start = self.stack.enter_context(store_processes(Path(folder)))
        self.daemon = start(*(ROOMY if keeps else (*TIGHT, *TIGHT_ENTRIES)))
        self.strings, self.blocks = Strings(keeps=keeps), Blocks(keeps=keeps)
        self.clients: dict[str, StoreClient] = {}
        self.kvs: dict[str, BlockStore] = {}
        self.views: list[tuple[str, View, bytes]] = []
        self.tickets: list[tuple[str, PrefixHit]] = []
        self.stores: list[tuple[str, StoreHandle]] = []
        self.puppet: Puppet | None = None
        self.versions = iter(range(1, 1 << 24))
        for seat in ("shm", "shm-2", "tcp"):
            self.connect(seat)

    def connect(self, seat: str) -> None:
        address = f"unix:{self.daemon.socket}" if seat != "tcp" else f"tcp://{self.daemon.listen}"
        token = self.daemon.token if seat == "tcp" else ""
        self.clients[seat] = connect(address, token=token, timeout_s=SECONDS)
        self.kvs[seat] = self.clients[seat].kv(NAMESPACE)

    def disconnect(self, seat: str) -> None:
        self.views = [held for held in self.views if held[0] != seat]
        self.tickets = [held for held in self.tickets if held[0] != seat]
        self.stores = [begun for begun in self.stores if begun[0] != seat]
        self.clients.pop(seat).close()

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        with self.stack:
            if (error := sys.exc_info()[1]) is not None:
                self.failures.append(error)
                return
            self.let_go()
            self.admin.post("/v1/unpin")
            for seat in list(self.clients):
                self.disconnect(seat)
            admin = self.admin
            wait_until(lambda: admin.stats()["connections"] == 0)
            wait_until(lambda: not self.held(), SECONDS)  # tickets of the dead last longest
            assert admin.stats()["internal_errors"] == 0

    def held(self) -> dict[str, int]:
        """What is not at rest yet."""
        report = self.admin.post("/v1/audit")
        held = {name: report[name] for name in ("pins", "in_flight", "quarantined")}
        held["reserved_bytes"] = self.admin.stats()["tiers"]["dram"]["reserved_bytes"]
        return {name: count for name, count in held.items() if count}

    @property
    def admin(self) -> Admin:
        return Admin(self.daemon.admin, self.daemon.token)

    def let_go(self) -> None:
        """Of everything held, in every client."""
        for _, view, _ in self.views:
            view.release()
        for seat, hit in self.tickets:
            self.kvs[seat].release(hit.ticket)
        for seat, store in self.stores:
            self.kvs[seat].abort(store)
        self.views, self.tickets, self.stores = [], [], []
        if self.puppet is not None:
            self.puppet.kill()
            self.puppet = None

    def asked(self, call: Callable[[], T]) -> tuple[T, Moment]:
        begin = time.monotonic()
        answer = call()
        return answer, Moment(begin, time.monotonic())

    def value(self, key: int, size: int) -> bytes:
        return value_of(key, next(self.versions), size)
