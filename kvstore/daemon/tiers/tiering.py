"""The NVMe tier as the daemon has it: demotion, promotion, removal, events, figures, the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice

from ...keys import EntryId, is_block, shard_of
from ...nvme import NvmeEntry, NvmeLocation, NvmeSettings, NvmeStats, NvmeTier
from ...store import Holding, Store, TierStats
from ...types import Tier
from ..counters import TransportCounters
from .demotion import Demoter
from .events import announce
from .source import NvmeSource
from .tenant_caps import TenantCaps

logger = logging.getLogger(__name__)

NOT_DURABLE = (
    "removed here, but the disk did not take the removal: what was removed may come back when this "
    "store starts again; see disk_errors of its stats, then repeat the call"
)
Then = Callable[[bool], None]
"""Runs once the disk holds nothing of it any more, whatever happens; False: it could not be made
sure."""
CLOSE_SECONDS = 1.0
MAX_TOUCHED = 8192
"""Between two ticks."""
TOUCHED_AT_ONCE = 512
"""Before others get the loop."""
GROUPS_AT_ONCE = 1
POLL_SECONDS = 0.02
GATHER_SECONDS = 0.002
"""Entries that come within so long are taken to the disk together: the first of them costs several
times what each of the others does."""


class Tiering:
    """Opens the tier, which recovers what an earlier process left (and takes as long as that
    takes). Lives in the loop; nothing here waits for the disk."""

    def __init__(
        self,
        store: Store,
        settings: NvmeSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        counters: TransportCounters,
    ) -> None:
        self._store = store
        self._loop = loop
        self._counters = counters
        self._pump_due = False
        self._tier = NvmeTier.open(
            settings,
            post=self._post,
            on_stored=self._stored,
            on_removed=self._removed,
            comes_again=lambda entry: self._demoter.writes_again(entry),
        )
        self._shards: dict[str, set[bytes]] = {}
        self._below_floor: dict[str, Then] = {}  # namespaces to be cleared, not yet told the disk
        self._closed: set[str] = set()  # namespaces of which nothing is written for now
        self._unread = self._tier.entries()  # of what was there at the start
        self._touched: dict[bytes, None] = {}
        self.caps = TenantCaps(
            self._tier,
            tenant_of=store.tenant_of,
            drop=self._drop_over_cap,
            reoffer=lambda: self._demoter.offer_again(),
        )
        self._demoter = Demoter(
            store,
            self._tier,
            caps=self.caps,
            closed=self._closed,
            writes=settings.writes,
            clock=time.monotonic,
            wake=self._pump_soon,
        )
        self.source = NvmeSource(
            store,
            self._tier,
            loop=loop,
            counters=counters,
            clock=time.monotonic,
            shards=self._shards,
            hidden=self._below_floor,
        )
        store.list_beyond(self._holdings)
        if settings.backlog == "refuse":
            store.keep_unflushed()
        if settings.writes == "late":
            store.spare_unflushed_segments()

    def tick(self, now: float) -> None:
        """Every 100 ms."""
        self._demoter.tick(now)
        self.source.tick()
        self._tell_touched()
        self._read_shards()
        self._clear_below_floors()
        self.caps.tick()

    def touch(self, entries: Iterable[bytes]) -> None:
        """These were hit, in whatever tier: the disk keeps them longer. MAX_TOUCHED at most are
        told to it, at the next tick. What they are followed by may be read ahead."""
        entries = list(entries)
        self.source.used(entries)
        for entry in entries:
            if len(self._touched) >= MAX_TOUCHED:
                return
            self._touched[entry] = None

    def disk_stats(self) -> NvmeStats:
        """As the tier itself counts."""
        return self._tier.stats()

    def stats(self) -> TierStats:
        """As every tier does."""
        stats = self._tier.stats()
        return TierStats(
            capacity_bytes=stats.capacity_bytes,
            used_bytes=stats.used_bytes,
            entries=stats.entries,
            flushed=stats.entries,
            hits=self.source.hits,
            misses=self.source.misses,
            evictions=stats.evictions,
            removals=stats.removals,
            bytes_in=stats.bytes_in,
            bytes_out=stats.bytes_out,
            corrupt=stats.corrupt,
            disk_errors=stats.disk_errors,
        )

    # -- ending entries -----------------------------------------------------------------

    def on_disk(self, entries: Sequence[EntryId]) -> list[EntryId]:
        """Those that lie there or are just being written there."""
        held = self._tier.holds(entries)
        return [
            entry
            for entry, is_held in zip(entries, held, strict=True)
            if is_held or self._demoter.is_writing(entry)
        ]

    def may_return(self, entries: Sequence[EntryId]) -> list[EntryId]:
        """Those that a later start might find there, unless they are dropped."""
        found = self._tier.may_return(entries)
        return [entry for entry, may in zip(entries, found, strict=True) if may]

    def drop(self, entries: Sequence[EntryId], then: Then) -> None:
        """`then` runs once their removal is durable: no crash brings them back."""
        if not self._tier.drop(entries, then):
            then(False)

    def clear(self, namespace: str | None, then: Then) -> None:
        """A namespace (digest, hex), string entries (""), or everything (None)."""

        def cleared(durable: bool) -> None:
            if durable and namespace != "":  # of strings, each was told
                self._announce_cleared(namespace)
            then(durable)

        if not self._tier.clear(namespace, cleared):
            then(False)

    def raise_floor(self, namespace: str, then: Then) -> None:
        """Nothing that lies here of the namespace (digest, hex) is brought up again, from this
        moment on; `then` once that is durable. Nothing of it is written until `reopen`, so that it
        may be cleared again. Of two raises the disk may see one; `then` is the later one's."""
        self._closed.add(namespace)
        self._below_floor[namespace] = then
        self._clear_below_floors()

    def reopen(self, namespace: str) -> None:
        """No start will clear it any more."""
        self._closed.discard(namespace)

    def _drop_over_cap(self, entries: Sequence[bytes]) -> None:
        """What a full queue does not take is found again by the next pass."""
        if entries:
            self._tier.drop(entries, _ignore)

    def _clear_below_floors(self) -> None:
        """As many as the disk's queue takes."""
        for namespace, then in list(self._below_floor.items()):
            if not self._tier.clear(namespace, then):
                return
            del self._below_floor[namespace]
            self._announce_cleared(namespace)

    # -- looking into it ----------------------------------------------------------------

    def page(self, after: bytes, limit: int) -> tuple[list[NvmeLocation], bytes]:
        """See `NvmeTier.page`."""
        return self._tier.page(after, limit)

    def locate_key(self, entry: bytes) -> list[NvmeLocation]:
        """What lies there of an entry id, or of a block (b"k" + key) in whatever shards are
        known."""
        wanted = [entry]
        if is_block(entry) and not shard_of(entry):
            known = set().union(*self._shards.values())
            wanted = [entry + shard for shard in known]
        return [location for location in self._tier.locate(wanted) if location is not None]

    # -- the end ------------------------------------------------------------------------

    async def flush(self, deadline: float) -> bool:
        """Writes what is not on disk yet, until `deadline` (monotonic). True when all is there."""
        self._demoter.sweep_all()
        while not self._demoter.is_idle:
            if time.monotonic() >= deadline:
                return False
            self._demoter.tick(time.monotonic())
            await asyncio.sleep(POLL_SECONDS)
        return True

    def resume(self) -> None:
        """After `flush`, the process goes on."""
        self._demoter.resume()

    def close(self) -> None:
        self._touched.clear()  # the loop may still be about to tell of them
        self._tier.close(CLOSE_SECONDS)

    # -- what the tier tells ------------------------------------------------------------

    def _stored(self, entries: Sequence[NvmeEntry]) -> None:
        self._counters.bytes_out += sum(entry.length for entry in entries)
        for entry in entries:
            _note_shard(self._shards, entry.namespace, entry.entry)
        # One that is dropped by now was announced as removed before this.
        held = self._tier.holds([entry.entry for entry in entries])
        announce(self._store, "stored", list(compress(entries, held)))

    def _removed(self, entries: Sequence[NvmeEntry]) -> None:
        self._store.forget_flushed([entry.entry for entry in entries])
        self._demoter.look_again()
        announce(self._store, "removed", entries)

    def _announce_cleared(self, namespace: str | None) -> None:
        if namespace is None:
            self._store.forget_all_flushed()
        self._store.events.publish(
            "cleared",
            instance=str(self._store.instance),
            tier=Tier.NVME,
            namespace=namespace or "",
        )

    def _holdings(self) -> Iterator[Holding]:
        """Read as the snapshot is sent: what changes meanwhile is told again by the events that
        follow it."""
        instance = str(self._store.instance)
        for namespace, entries in self._tier.entries():
            yield Holding(instance, Tier.NVME, namespace, entries)

    def _post(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(call)

    def _tell_touched(self) -> None:
        entries = list(islice(self._touched, TOUCHED_AT_ONCE))
        if not entries:
            return
        for entry in entries:
            del self._touched[entry]
        self._tier.touch(entries)
        self._loop.call_soon(self._tell_touched)

    def _read_shards(self) -> None:
        """A part of what an earlier process left, each time."""
        for namespace, entries in islice(self._unread, GROUPS_AT_ONCE):
            for entry in entries:
                _note_shard(self._shards, namespace, entry)

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_later(GATHER_SECONDS, self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        self._demoter.pump()


def _note_shard(shards: dict[str, set[bytes]], namespace: str, entry: bytes) -> None:
    if namespace:
        shards.setdefault(namespace, set()).add(shard_of(entry))


def _ignore(durable: bool) -> None:
    """A later start may find it, and drops it again."""
