"""`connect(...)`: the client of one store daemon."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moontide.transfer import CopyHelper, TlsFiles
from moontide.transfer.types import Instance

from .. import wire
from ..errors import Conflict, InvalidRequest
from ..keys import (
    EntryId,
    Extra,
    Namespace,
    TokenIds,
    block_keys,
    string_entry_id,
    string_entry_ids,
)
from ..layout import Shard
from ..tls import open_tls
from ..types import IfExists, PutResult, PutStatus
from .batches import batches
from .blocks.block_store import BlockStore
from .blocks.desk import JobDesk
from .buffers import all_readable_bytes, readable_bytes, writable_bytes
from .clearing import ClearedNodes, clear_message
from .connections.address import TcpAddress, parse_address
from .connections.attachment import Attachment, AttachmentHooks, Attachments
from .connections.channel import Channel
from .connections.connection import Identity
from .connections.dialer import Dialer
from .connections.link import Link
from .connections.writes import RunningWrites
from .copies import Checksums, copies_with
from .counters import ClientCounters
from .deadline import Deadline, check_timeout
from .pinned import PinnedKeys
from .prefetching import PrefetchTier, check_tier, prefetch_entries
from .put_options import put_options
from .reading import Reader
from .runs import IDLE_SECONDS
from .targets import AS_BYTES, IntoBuffers
from .view import Pin, Pins, View
from .writing import Writer

if TYPE_CHECKING:
    from typing_extensions import Buffer

Key = str | bytes
CLOSE_SECONDS = 1.0
TEND_SECONDS = 1.0
_FOUND = b"\1"
GRANTED_TEND_SECONDS = 0.1


def connect(
    address: str,
    *,
    token: str = "",
    timeout_s: float = 5.0,
    instance: Instance | None = None,
    checksums: Checksums = "on",
    tls: TlsFiles | None = None,
) -> StoreClient:
    """A client of the daemon at `unix:PATH` or `tcp://host:port` (which needs the cluster `token`,
    and `tls` where that store has --tls-cert: a certificate of the same CA).

    Waits up to `timeout_s` for the daemon; that is also the default limit of each call. `instance`
    is the name under which an engine's own blocks are published: this process's, no other client's.
    `checksums` "off": string values are put without one, and nobody notices damage to them in DRAM;
    what has one is verified all the same. Raises StoreUnavailable, AccessDenied, InvalidRequest."""
    if instance is None:
        instance = Instance.new(os.uname().nodename.replace("/", "-"))
    return StoreClient(
        address,
        token=token,
        timeout_s=timeout_s,
        instance=instance,
        checksums=checksums,
        tls=tls,
    )


class StoreClient:
    """Thread-safe; unusable after a fork (ForkedClient).

    When the daemon goes away it reconnects by itself, and calls meanwhile raise StoreUnavailable
    at their deadline. Every call takes `timeout_s` (default: that of `connect`) and raises
    StoreTimeout when it passes. Keys `"a"` and `b"a"` are the same; values are bytes. Buffers
    must not change until the call returns."""

    def __init__(
        self,
        address: str,
        *,
        token: str,
        timeout_s: float,
        instance: Instance,
        checksums: Checksums,
        tls: TlsFiles | None = None,
    ) -> None:
        self._timeout_s = check_timeout(timeout_s)
        target = parse_address(address)
        if isinstance(target, TcpAddress) and not token:
            raise InvalidRequest(
                f"{address} needs token=…, the content of the store's --token-file"
            )
        if not isinstance(token, str):
            raise InvalidRequest(
                f"token is a {type(token).__name__}; give the text of the store's --token-file"
            )
        if tls is not None and not isinstance(tls, TlsFiles):
            raise InvalidRequest(f"tls is a {type(tls).__name__}; give TlsFiles(cert, key, ca)")
        if tls is not None and not isinstance(target, TcpAddress):
            raise InvalidRequest(f"tls is given with {address}, which has none: leave it out")
        self.counters = ClientCounters()
        self._writes = RunningWrites()
        self._attachments = Attachments(
            AttachmentHooks(self._on_release, self._send_notes, self.counters)
        )
        self._dialer = Dialer(
            Identity(target, token.strip(), instance, open_tls(tls)),
            self._attachments,
            self._writes,
        )
        self._link = Link(self._dialer, self._on_notice)
        self._pins = Pins(self._link, self._timeout_s)
        self._helper = CopyHelper()
        self._reader = Reader(self._link, self.counters, self._helper)
        self._writer = Writer(
            self._link,
            self._writes,
            self._io,
            copies=copies_with(checksums, self._helper),
            helper=self._helper,
        )
        self._channel_lock = threading.Lock()
        self._channel: Channel | None = None
        self._job_desks: weakref.WeakSet[JobDesk] = weakref.WeakSet()
        self._link.open(Deadline(self._timeout_s))
        _clients.add(self)

    # -- writing ----------------------------------------------------------------------

    def put(
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
        """Stores all bytes of a contiguous buffer. Under an existing key: `keep` leaves it
        (EXISTS), `replace` replaces it, `error` raises Conflict. FULL means retry later.
        `replicas`: complete copies on as many nodes, of which the cluster must have enough; FULL
        also when there could not be so many yet: what was stored stays."""
        deadline = self._begin(timeout_s)
        options = put_options(if_exists, ttl_s, soft_pin=soft_pin, replicas=replicas)
        entry = string_entry_id(key)
        value = data if type(data) is bytes else readable_bytes(data)
        with self._link.interruptible:
            result = self._writer.put_one(entry, value, options, deadline)
        if if_exists == "error" and result.status is PutStatus.EXISTS:
            raise Conflict(
                f"key {key!r} exists already; remove it first or put with if_exists='replace'"
            )
        return result

    def put_many(
        self,
        items: Sequence[tuple[Key, Buffer]],
        *,
        if_exists: IfExists = "keep",
        ttl_s: float | None = None,
        soft_pin: bool = False,
        replicas: int = 1,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """One result an item, in order; no item fails because another does."""
        deadline = self._begin(timeout_s)
        items = list(items)  # a generator gives them once
        options = put_options(if_exists, ttl_s, soft_pin=soft_pin, replicas=replicas)
        entries = string_entry_ids([key for key, _ in items])
        values = all_readable_bytes([data for _, data in items])
        with self._link.interruptible:
            return self._writer.put(entries, values, options, deadline)

    def remove(self, key: Key, *, timeout_s: float | None = None) -> bool:
        """True when it was there."""
        return bool(self.remove_many([key], timeout_s=timeout_s))

    def remove_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> int:
        """How many were there."""
        deadline = self._begin(timeout_s)
        entries = string_entry_ids(keys)
        removed = 0
        for part in batches(entries):
            message = wire.Remove(list(entries[part]))
            removed += _count(self._link.act(message, deadline).reply)
        return removed

    def remove_blocks(
        self,
        namespace: Namespace,
        token_ids: TokenIds,
        *,
        first_block: int = 0,
        extra: Extra = (),
        timeout_s: float | None = None,
    ) -> int:
        """Removes the full blocks of a prompt from `first_block` on, in all of their shards, at
        every node, whoever put them: also for prompts that share them. A node that is away forgets
        the namespace before it serves again. How many were there."""
        deadline = self._begin(timeout_s)
        keys = block_keys(namespace, token_ids, extra=extra)[first_block:]
        entries = [EntryId(b"k" + key) for key in keys]  # of each all shards
        removed = 0
        for part in batches(entries):
            message = wire.Remove(list(entries[part]), namespaces=[namespace.digest])
            removed += _count(self._link.act(message, deadline).reply)
        return removed

    def clear(self, *, nodes: ClearedNodes = "all", timeout_s: float | None = None) -> int:
        """Removes every entry, blocks and strings, whoever put them: at all nodes of the cluster,
        or at the daemon's. How many went at the daemon's."""
        return _count(self._link.act(clear_message(nodes), self._begin(timeout_s)).reply)

    # -- reading ----------------------------------------------------------------------

    def get(self, key: Key, *, timeout_s: float | None = None) -> bytes | None:
        """The bytes put under `key`, verified; None: a miss."""
        entry = string_entry_id(key)
        known = self._reader.read_known(entry, AS_BYTES) if timeout_s is None else None
        if known is not None:
            return known
        return self._reader.read_one(entry, AS_BYTES, self._begin(timeout_s))

    def get_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> list[bytes | None]:
        return self._reader.read(string_entry_ids(keys), AS_BYTES, self._begin(timeout_s))

    def get_into(self, key: Key, buffer: Buffer, *, timeout_s: float | None = None) -> int | None:
        """Fills the front of `buffer`; the entry's size, or None: a miss (parts of the buffer may
        have been written). Raises InvalidRequest when the buffer is too small."""
        entry = string_entry_id(key)
        target = IntoBuffers((writable_bytes(buffer),), self._helper)
        known = self._reader.read_known(entry, target) if timeout_s is None else None
        if known is not None:
            return known
        return self._reader.read_one(entry, target, self._begin(timeout_s))

    def get_many_into(
        self, keys: Sequence[Key], buffers: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> list[int | None]:
        deadline = self._begin(timeout_s)
        if len(keys) != len(buffers):
            raise InvalidRequest(f"{len(keys)} keys and {len(buffers)} buffers; give one a key")
        flat = memoryview if {bytearray}.issuperset(map(type, buffers)) else writable_bytes
        target = IntoBuffers(list(map(flat, buffers)), self._helper)
        return self._reader.read(string_entry_ids(keys), target, deadline)

    def view(self, key: Key, *, timeout_s: float | None = None) -> View | None:
        """The entry in place, pinned until released; None: a miss. Over TCP it is a copy. Raises
        OutOfSpace when this client pins more than its share."""
        entry = string_entry_id(key)
        deadline = self._begin(timeout_s)
        with self._link.interruptible:
            return self._view(entry, deadline)

    def _view(self, entry: EntryId, deadline: Deadline) -> View | None:
        while self._link.open(deadline).shared_memory:
            deadline.check("view")
            (located,), answer = self._reader.locate([entry], deadline, pin_s=0)
            if located is None:
                return None
            assert isinstance(answer.reply, wire.LookupReply)
            pin = Pin(self._pins, answer.attachment, answer.connection, answer.reply.ticket)
            try:
                source = self._reader.source(answer.attachment, located, deadline)
            except BaseException:
                pin.release()
                raise
            if source is not None:
                return View(
                    source,
                    place=(answer.attachment, located),
                    pin=pin,
                    on_corrupt=self._reader.report_corrupt,
                )
            pin.release()
        (value,) = self._reader.read([entry], AS_BYTES, deadline)
        return None if value is None else View.of_copy(value)

    def pin(
        self, keys: Sequence[Key], *, ttl_s: float = 10.0, timeout_s: float | None = None
    ) -> PinnedKeys:
        """Pins those of `keys` that are there for `ttl_s`, in one round trip: their views and
        copies then need none. Raises OutOfSpace when this client pins more than its share."""
        deadline = self._begin(timeout_s)
        pinned = PinnedKeys(
            self._reader, self._link, self._pins, ttl_s=ttl_s, timeout_s=self._timeout_s
        )
        try:
            pinned.take(keys, deadline)
        except BaseException:
            pinned.release()
            raise
        return pinned

    def exists(self, key: Key, *, timeout_s: float | None = None) -> bool:
        entry = string_entry_id(key)
        if timeout_s is None and self._reader.find_known(entry) is not None:
            return True
        reply = self._link.ask(wire.Exists([entry]), self._begin(timeout_s)).reply
        assert isinstance(reply, wire.ExistsReply)
        return reply.found == _FOUND

    def exists_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> list[bool]:
        deadline = self._begin(timeout_s)
        entries = string_entry_ids(keys)
        found: list[bool] = []
        for part in batches(entries):
            reply = self._link.ask(wire.Exists(list(entries[part])), deadline).reply
            assert isinstance(reply, wire.ExistsReply)
            found += (np.frombuffer(reply.found, np.uint8) == 1).tolist()
        return found

    def size(self, key: Key, *, timeout_s: float | None = None) -> int | None:
        """Bytes of the entry; None: a miss."""
        entry = string_entry_id(key)
        known = self._reader.find_known(entry) if timeout_s is None else None
        if known is not None:
            return known[4]
        (located,), _ = self._reader.locate([entry], self._begin(timeout_s))
        return located.length if located else None

    def prefetch(
        self, keys: Sequence[Key], *, tier: PrefetchTier = "dram", timeout_s: float | None = None
    ) -> int:
        """Begins to bring entries from disk and other nodes to DRAM while a request queues; how
        many are there or on their way. Pins nothing. What has not come within `timeout_s` may be
        given up."""
        check_tier(tier)
        return prefetch_entries(self._link, string_entry_ids(keys), self._begin(timeout_s))

    def stats(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """The body of the daemon's `GET /v1/stats`."""
        reply = self._link.ask(wire.GetStats(), self._begin(timeout_s)).reply
        assert isinstance(reply, wire.StatsReply)
        stats: dict[str, Any] = json.loads(reply.stats)
        return stats

    # -- blocks -----------------------------------------------------------------------

    def kv(
        self,
        namespace: Namespace,
        shard: Shard | Sequence[Shard] | None = None,
        *,
        replicas: int = 1,
        timeout_s: float | None = None,
    ) -> BlockStore:
        """KV blocks of `namespace`, read and written as the shards given (None: whole blocks), on
        so many nodes unless a call says otherwise. Raises LayoutMismatch when a shard reaches
        outside the layout."""
        deadline = self._begin(timeout_s)
        if shard is None:
            coverage = namespace.layout.whole()
        else:
            coverage = (shard,) if isinstance(shard, Shard) else tuple(shard)
        store = BlockStore(
            self._io(), namespace, coverage, timeout_s=self._timeout_s, replicas=replicas
        )
        try:
            store.open(deadline)
        except BaseException:
            store.close()
            raise
        self._job_desks.add(store.jobs.desk)
        return store

    # -- life -------------------------------------------------------------------------

    def close(self) -> None:
        """Idempotent. Closes its block stores, ends pins and reservations, and gives granted
        segments back; data of views stays readable. In a forked child nothing: all of it is the
        parent's, and threads that are not here may hold its locks."""
        if self._link.is_forked:
            return
        for desk in list(self._job_desks):
            desk.close()
        self._dialer.stop()
        with self._channel_lock:
            if self._channel is not None:
                self._channel.close()
        self._writer.runs.give_up_idle(time.monotonic())
        attachment = self._attachments.current
        if attachment is not None:
            self._link.release_segments(attachment.unmap_granted(), Deadline(CLOSE_SECONDS))
        self._link.close()
        self._attachments.close()
        self._helper.close()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def after_fork(self) -> None:
        """In a forked child: from now on every call raises ForkedClient."""
        self._link.after_fork()
        self._helper.after_fork()
        if self._channel is not None:
            self._channel.after_fork()

    def _begin(self, timeout_s: float | None) -> Deadline:
        self._link.check_usable()
        if self._pins.dropped:
            self._pins.release_dropped()
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _io(self) -> Channel:
        """The background connection, started when it is first needed: for blocks, and to answer the
        daemon's wish for a granted segment while no call runs."""
        with self._channel_lock:
            self._link.check_usable()
            if self._channel is None:
                self._channel = Channel(
                    self._dialer,
                    self._writes,
                    self.counters,
                    on_notice=self._on_notice,
                    tend=self._tend,
                )
            return self._channel

    def _send_notes(self) -> None:
        self._link.send_notes()

    def _tend(self) -> float:
        """A wish for a segment may come over the connection that only calls read. Seconds until it
        is worth looking again."""
        self._link.take_notices()
        self._link.send_notes()
        self._writer.runs.give_up_idle(time.monotonic() - IDLE_SECONDS)
        attachment = self._attachments.current
        granted = attachment is not None and attachment.has_granted()
        return GRANTED_TEND_SECONDS if granted else TEND_SECONDS

    def _on_notice(self, attachment: Attachment, message: wire.Reply) -> bool:
        if isinstance(message, wire.RevokeSegment):
            attachment.revoke(message.segment)
            return True
        return False

    def _on_release(self, attachment: Attachment, segment: int) -> None:
        (self._channel or self._io()).release_segment(attachment, segment)


def _count(reply: wire.Reply) -> int:
    assert isinstance(reply, wire.CountReply)
    return reply.count


_clients: weakref.WeakSet[StoreClient] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
