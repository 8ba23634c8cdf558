"""Any sequence of operations, by several clients over both transports, on a real daemon with DRAM
and NVMe, which is stopped and killed on the way, against a dict. A get gives the bytes that were
put last, or a miss where one is allowed; what was removed or replaced never comes back; what the
disk has survives a kill; and after each step the daemon's accounts agree.

Processes take their own time, so that a run does not repeat another: what a rule finds to do may
differ, what it draws may not. Hence no precondition on answers, and the first failure is told as it
was."""

from __future__ import annotations

import base64
import contextlib
import signal
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from moontide.kvstore import (
    BlockStore,
    Conflict,
    OutOfSpace,
    PrefixHit,
    PutStatus,
    StoreHandle,
    ViewExpired,
)

from ...waiting import wait_until
from ..client.helpers import block_bytes, buffers_for, result_of
from .expected import Moment
from .puppet import NAMESPACE, Puppet
from .world import SECONDS, World

KEYS = st.integers(0, 11)
SIZES = st.sampled_from([0, 1, 15, 16, 64, 1000, 4096, 5000, 65_536, 65_537, 300_000])
SEATS = st.sampled_from(["shm", "shm-2", "tcp"])
PROMPTS = st.tuples(st.integers(0, 2), st.integers(1, 6))


def rarely(one_in: int) -> st.SearchStrategy[bool]:
    return st.integers(1, one_in).map(lambda number: number == one_in)


class StoreMachine(World):
    # -- strings --------------------------------------------------------------------------

    @rule(
        seat=SEATS,
        key=KEYS,
        size=SIZES,
        if_exists=st.sampled_from(["keep", "replace", "replace", "error"]),
        ttl_s=st.sampled_from([None, None, None, 0.05, 60.0]),
        soft_pin=st.booleans(),
    )
    def put(
        self, seat: str, key: int, size: int, if_exists: str, ttl_s: float | None, soft_pin: bool
    ) -> None:
        name, value = f"k{key}", self.value(key, size)
        begin = time.monotonic()
        try:
            result = self.clients[seat].put(
                name,
                value,
                if_exists=if_exists,  # type: ignore[arg-type]  # one of the three names
                ttl_s=ttl_s,
                soft_pin=soft_pin,
            )
        except Conflict:
            assert if_exists == "error"
            self.strings.check_there(name, True, Moment(begin, time.monotonic()))
            return
        self.note_put(name, value, result.status, if_exists, Moment(begin, time.monotonic()), ttl_s)

    def note_put(
        self,
        name: str,
        value: bytes,
        status: PutStatus,
        if_exists: str,
        called: Moment,
        ttl_s: float | None = None,
    ) -> None:
        assert status is not PutStatus.FAILED
        if status is PutStatus.STORED:
            if if_exists != "replace":
                self.strings.check_there(name, False, called)
            self.strings.stored(name, value, called, ttl_s)
        elif status is PutStatus.EXISTS:
            assert if_exists == "keep"
            self.strings.check_there(name, True, called)

    @rule(seat=SEATS, keys=st.lists(KEYS, max_size=6), size=SIZES, replace=st.booleans())
    def put_many(self, seat: str, keys: list[int], size: int, replace: bool) -> None:
        items = [(f"k{key}", self.value(key, size)) for key in keys]
        if_exists = "replace" if replace else "keep"
        results, called = self.asked(
            lambda: self.clients[seat].put_many(items, if_exists=if_exists)  # type: ignore[arg-type]  # one of the names
        )
        for (name, value), result in zip(items, results, strict=True):
            self.note_put(name, value, result.status, if_exists, called)

    @rule(seat=SEATS, key=KEYS)
    def get(self, seat: str, key: int) -> None:
        got, asked = self.asked(lambda: self.clients[seat].get(f"k{key}"))
        self.strings.check_get(f"k{key}", got, asked)

    @rule(seat=SEATS, key=KEYS)
    def get_into(self, seat: str, key: int) -> None:
        buffer = bytearray(300_000)
        size, asked = self.asked(lambda: self.clients[seat].get_into(f"k{key}", buffer))
        got = None if size is None else bytes(buffer[:size])
        self.strings.check_get(f"k{key}", got, asked)

    @rule(seat=SEATS, keys=st.lists(KEYS, max_size=8))
    def get_many(self, seat: str, keys: list[int]) -> None:
        names = [f"k{key}" for key in keys]
        values, asked = self.asked(lambda: self.clients[seat].get_many(names))
        for name, value in zip(names, values, strict=True):
            self.strings.check_get(name, value, asked)

    @rule(seat=SEATS, keys=st.lists(KEYS, min_size=1, max_size=8))
    def exists(self, seat: str, keys: list[int]) -> None:
        names = [f"k{key}" for key in keys]
        found, asked = self.asked(lambda: self.clients[seat].exists_many(names))
        for name, there in zip(names, found, strict=True):
            self.strings.check_there(name, there, asked)

    @rule(seat=SEATS, key=KEYS)
    def size(self, seat: str, key: int) -> None:
        size, asked = self.asked(lambda: self.clients[seat].size(f"k{key}"))
        self.strings.check_size(f"k{key}", size, asked)

    @rule(seat=SEATS, keys=st.lists(KEYS, min_size=1, max_size=3))
    def remove(self, seat: str, keys: list[int]) -> None:
        names = {f"k{key}" for key in keys}
        count, called = self.asked(lambda: self.clients[seat].remove_many(list(names)))
        surely = [name for name in names if self.strings.of(name).must_be_there(called)]
        perhaps = [name for name in names if self.strings.of(name).values]
        assert len(surely) <= count <= len(perhaps)
        self.strings.removed(names)

    @rule(seat=SEATS, key=KEYS)
    def view(self, seat: str, key: int) -> None:
        try:
            view, asked = self.asked(lambda: self.clients[seat].view(f"k{key}"))
        except OutOfSpace:
            assert len(self.views) > 0
            return
        data = None if view is None else bytes(view.data)
        self.strings.check_get(f"k{key}", data, asked)
        if view is not None and data is not None:
            self.views.append((seat, view, data))

    @rule(index=st.integers(0, 20))
    def release_view(self, index: int) -> None:
        if not self.views:
            return
        _, view, data = self.views.pop(index % len(self.views))
        lost = not view.valid()
        with contextlib.suppress(ViewExpired) if lost else contextlib.nullcontext(), view:
            assert lost or view.data == data

    # -- blocks ---------------------------------------------------------------------------

    @staticmethod
    def tokens(prompt: tuple[int, int]) -> list[int]:
        name, num_blocks = prompt
        return [name * 1000 + token for token in range(num_blocks * 16)]

    @rule(seat=SEATS, prompt=PROMPTS)
    def begin_store(self, seat: str, prompt: tuple[int, int]) -> None:
        kv = self.kvs[seat]
        store = kv.begin_store(self.tokens(prompt), deadline_s=60)
        self.stores.append((seat, store))
        job = kv.submit_store(store, 0, self.layer_of(kv, store, 0), deadline_s=SECONDS)
        result_of(kv, job)
        assert store.statuses is not None

    @staticmethod
    def layer_of(kv: BlockStore, store: StoreHandle, layer: int) -> list[bytes]:
        num_bytes = kv.layer_bytes(layer)
        return [block_bytes(key, layer, num_bytes) for key in store.keys]

    @rule(index=st.integers(0, 20), how=st.sampled_from(["commit", "commit", "abort", "cancel"]))
    def end_store(self, index: int, how: str) -> None:
        if not self.stores:
            return
        seat, store = self.stores.pop(index % len(self.stores))
        kv = self.kvs[seat]
        if how == "abort":
            kv.abort(store)
        elif how == "cancel":
            kv.cancel(store.job)
        else:
            for layer in range(1, kv.num_layers):
                kv.submit_store(store, layer, self.layer_of(kv, store, layer), deadline_s=SECONDS)
            kv.commit(store)
        result = result_of(kv, store.job, SECONDS)
        failed = set(result.failed_blocks)
        if how == "commit" and result.status == "done":
            self.blocks.stored(key for i, key in enumerate(store.keys) if i not in failed)

    @rule(seat=SEATS, prompt=PROMPTS, pin_s=st.sampled_from([None, 5.0, 5.0]))
    def lookup(self, seat: str, prompt: tuple[int, int], pin_s: float | None) -> None:
        kv, tokens = self.kvs[seat], self.tokens(prompt)
        hit = kv.lookup(tokens, pin_s=pin_s, timeout_s=SECONDS)
        self.blocks.check_prefix(kv.keys(tokens), len(hit.blocks))
        if pin_s and hit.blocks:
            self.tickets.append((seat, hit))
        else:
            self.load(kv, hit)

    def load(self, kv: BlockStore, hit: PrefixHit) -> None:
        layers = range(kv.num_layers)
        buffers = buffers_for(kv, layers, len(hit.blocks))
        result = kv.load(hit.ticket, layers, buffers, timeout_s=SECONDS)
        for layer, row in zip(layers, buffers, strict=True):
            for block, (key, buffer) in enumerate(zip(hit.blocks, row, strict=True)):
                if block not in result.failed_blocks:
                    assert buffer == block_bytes(key, layer, len(buffer))

    @rule(index=st.integers(0, 20), act=st.sampled_from(["load", "renew", "release", "release"]))
    def use_ticket(self, index: int, act: str) -> None:
        if not self.tickets:
            return
        seat, hit = self.tickets[index % len(self.tickets)]
        if act == "load":
            self.load(self.kvs[seat], hit)
        elif act == "renew":
            self.kvs[seat].renew(hit.ticket, ttl_s=5.0)
        else:
            self.kvs[seat].release(hit.ticket)
            del self.tickets[index % len(self.tickets)]

    # -- the operator -----------------------------------------------------------------------

    @rule(prompt=PROMPTS)
    def delete_block(self, prompt: tuple[int, int]) -> None:
        key = self.kvs["shm"].keys(self.tokens(prompt))[-1]
        status, _ = self.admin.call("DELETE", f"/v1/blocks/kv:{key.hex()}")
        assert status == 200
        self.blocks.removed([key])

    @rule(key=KEYS)
    def delete_string(self, key: int) -> None:
        assert self.admin.call("DELETE", f"/v1/blocks/s:k{key}").status == 200
        self.strings.removed([f"k{key}"])

    @rule(
        tier=st.sampled_from(["dram", "nvme", None]),
        keys=st.lists(KEYS, min_size=1, max_size=4),
        dry_run=st.booleans(),
    )
    def evict(self, tier: str | None, keys: list[int], dry_run: bool) -> None:
        body = {"keys": [f"s:k{key}" for key in keys], "dry_run": dry_run}
        self.admin.post("/v1/evict", body | ({"tier": tier} if tier else {}))
        if not dry_run:
            names = [f"k{key}" for key in keys]
            self.strings.evicted(names, from_dram_only=tier == "dram")

    @rule(seldom=rarely(8), namespace=st.sampled_from([None, "", NAMESPACE.digest.hex()]))
    def clear(self, seldom: bool, namespace: str | None) -> None:
        if not seldom:
            return
        self.admin.post("/v1/clear", {} if namespace is None else {"namespace": namespace})
        if namespace in (None, ""):
            self.strings.all_removed()
        if namespace != "":
            self.blocks.all_removed()

    @rule(seldom=rarely(6))
    def raise_floor(self, seldom: bool) -> None:
        """R31: nothing that was stored before counts, wherever it lies, also after a kill."""
        if seldom:
            self.admin.post("/v1/floor", {"namespace": NAMESPACE.digest.hex()})
            self.blocks.all_removed()

    @rule(key=KEYS, prompt=PROMPTS, ttl_s=st.sampled_from([0.2, 60.0]))
    def pin(self, key: int, prompt: tuple[int, int], ttl_s: float) -> None:
        block = self.kvs["shm"].keys(self.tokens(prompt))[-1]
        keys = [f"s:k{key}", f"kv:{block.hex()}"]
        self.admin.post("/v1/pin", {"keys": keys, "ttl_s": ttl_s})

    @rule()
    def unpin(self) -> None:
        self.admin.post("/v1/unpin")

    @rule(seat=SEATS, keys=st.lists(KEYS, min_size=1, max_size=4), prompt=PROMPTS)
    def prefetch(self, seat: str, keys: list[int], prompt: tuple[int, int]) -> None:
        """Brings what may be known, and makes nothing up."""
        names = {f"k{key}" for key in keys}
        count = self.clients[seat].prefetch(list(names))
        assert count <= sum(bool(self.strings.of(name).values) for name in names)
        self.kvs[seat].prefetch(self.tokens(prompt))

    @rule(seldom=rarely(3))
    def flush(self, seldom: bool) -> None:
        """Waits until all that must be there lies on disk."""
        if not seldom:
            return
        wanted = {f"s:{key}" for key in self.strings.to_be_flushed()}
        wanted |= {f"kv:{key.hex()}" for key in self.blocks.to_be_flushed()}
        wait_until(lambda: wanted <= set(self.on_disk()), SECONDS)
        self.strings.flushed()
        self.blocks.flushed()

    def on_disk(self) -> Iterator[str]:
        page = self.admin.get("/v1/blocks?tier=nvme&limit=1000")
        assert not page["cursor"]
        return (entry["key"] for entry in page["entries"])

    # -- ends -------------------------------------------------------------------------------

    @rule(seldom=rarely(4), seat=SEATS)
    def reconnect(self, seldom: bool, seat: str) -> None:
        if seldom:
            self.disconnect(seat)
            self.connect(seat)

    @rule(seldom=rarely(6), how=st.sampled_from(["kill", "kill", "stop"]))
    def restart(self, seldom: bool, how: str) -> None:
        if not seldom:
            return
        if self.puppet is not None:
            self.puppet.kill()
            self.puppet = None
        if how == "kill":
            self.daemon.kill()
            self.strings.lost_power()
            self.blocks.lost_power()
        else:
            self.daemon.signal(signal.SIGTERM)
            assert self.daemon.wait() == 0
            self.strings.stopped()
        self.daemon.start()
        self.tickets, self.stores = [], []
        for _, view, _ in self.views:
            assert not view.valid() or view.data.readonly
            view.release()
        self.views = []
        self.disconnect("tcp")
        self.connect("tcp")  # its port is another

    @rule(key=KEYS, size=SIZES)
    def puppet_puts(self, key: int, size: int) -> None:
        name, value = f"k{key}", self.value(key, size)
        text = base64.b64encode(value).decode()
        status, called = self.asked(
            lambda: self.the_puppet().call("put", key=name, value=text, if_exists="replace")
        )
        self.note_put(name, value, PutStatus[status], "replace", called)

    @precondition(lambda self: self.puppet is not None)
    @rule(key=KEYS)
    def puppet_gets(self, key: int) -> None:
        text, asked = self.asked(lambda: self.the_puppet().call("get", key=f"k{key}"))
        self.strings.check_get(f"k{key}", None if text is None else base64.b64decode(text), asked)

    @precondition(lambda self: self.puppet is not None)
    @rule(key=KEYS, prompt=PROMPTS)
    def puppet_holds(self, key: int, prompt: tuple[int, int]) -> None:
        there, asked = self.asked(lambda: self.the_puppet().call("hold", key=f"k{key}"))
        self.strings.check_there(f"k{key}", there, asked)
        self.the_puppet().call("half", tokens=self.tokens(prompt))

    @precondition(lambda self: self.puppet is not None)
    @rule(key=KEYS, size=SIZES, patience=st.sampled_from([0.0, 0.0002, 0.001, 0.005]))
    def kill_puppet(self, key: int, size: int, patience: float) -> None:
        """In the middle of a put, at whatever place of it."""
        name, value = f"k{key}", self.value(key, size)
        text = base64.b64encode(value).decode()
        self.the_puppet().tell("put", key=name, value=text, if_exists="replace")
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            pass
        self.the_puppet().kill()
        self.puppet = None
        self.strings.perhaps_stored(name, value)
        for client in self.clients.values():
            client.stats()  # it may not have noticed a restart yet
        wait_until(lambda: self.admin.stats()["client_processes"] == len(self.clients))

    def the_puppet(self) -> Puppet:
        if self.puppet is None:
            self.puppet = Puppet(f"unix:{self.daemon.socket}")
        return self.puppet

    # -- what always holds --------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "stack"))
    @invariant()
    def accounts_agree(self) -> None:
        assert self.admin.post("/v1/audit")["differences"] == []

    @precondition(lambda self: hasattr(self, "stack"))
    @invariant()
    def viewed_bytes_stay(self) -> None:
        for _, view, data in self.views:
            assert view.valid()
            assert view.data == data


def run(max_examples: int, steps: int, *, derandomize: bool) -> None:
    StoreMachine.failures.clear()
    try:
        run_state_machine_as_test(
            StoreMachine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=derandomize,
                database=None,
                phases=[Phase.generate],  # each example starts processes: none is shrunk
                verbosity=Verbosity.debug,  # prints the steps; kept when it fails
                suppress_health_check=list(HealthCheck),
            ),
        )
    except Exception:
        if StoreMachine.failures:
            raise StoreMachine.failures[0]  # noqa: B904 - the replay that followed says nothing
        raise


@pytest.mark.timeout(300)
def test_r01_any_operations_on_a_daemon_that_is_killed_agree_with_a_dict() -> None:
    run(8, 50, derandomize=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_r01_any_operations_on_a_daemon_that_is_killed_agree_with_a_dict_for_long() -> None:
    run(250, 120, derandomize=False)
