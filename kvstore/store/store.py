"""The store of one node as a plain synchronous class: every decision, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from ..keys import BlockKey, EntryId, Namespace
from ..slots import SlotState
from .admission import AdmissionRules
from .audit import audit
from .checks import check_keys
from .demoting import StoreDemoting
from .ends import DropReason
from .finding import StoreFinding
from .namespaces import OpenNamespace
from .pool import Holder
from .retiring import Sweep
from .scoped_eviction import Eviction
from .slot_table import NO_SLOT
from .statistics import tier_stats
from .tenants import TenantBytes, TenantUsage
from .types import AuditReport, EntryInfo, EntryPage, EvictScope, Explanation, OwnerId, Stats
from .writing import StoreWriting


class Store(StoreWriting, StoreFinding, StoreDemoting):
    """Entries of one node in its DRAM pool.

    Single-threaded: the daemon's loop owns it. `now` is monotonic seconds. An owner is a
    connection; what it reserved or view-pinned ends with `disconnect`. Bad arguments raise
    InvalidRequest; what a peer can cause (a finished reservation, a miss, no room) is a result."""

    # -- ending -----------------------------------------------------------------------

    def remove(
        self, entries: Sequence[EntryId], now: float, reason: DropReason = DropReason.REMOVED
    ) -> int:
        """Number removed. A pinned one is a miss from now on; its space stays until unpinned."""
        self._entries.expire_among(entries, now)
        self._catalog.doom_fills(entries)
        slots = {self._catalog.visible.get(entry, NO_SLOT) for entry in entries} - {NO_SLOT}
        self._entries.drop(list(slots), reason)
        self._counters.removals += len(slots)
        return len(slots)

    def begin_clear(self, namespace: bytes | None, *, strings_only: bool) -> Sweep:
        """Nobody finds what a namespace (digest), all string entries, or everything holds now, from
        this moment on; it goes as the sweep is iterated over, and the catalog's memory with it.
        Views and tickets stay; what clients are writing will be there. Raises OutOfSpace (retry
        later)."""
        chosen: list[OpenNamespace] = []
        if namespace is not None:
            opened = self._namespaces.find(namespace)
            chosen = [] if opened is None else [opened]
        elif not strings_only:
            chosen = [*self._namespaces]
        sweep = self._retiring.clear(chosen, strings=strings_only or namespace is None)
        self._tenants.renewed(chosen)
        return sweep

    def clear(self, namespace: bytes | None, *, strings_only: bool) -> int:
        """As `begin_clear`, all of it at once, however long it takes. How many went."""
        sweep = self.begin_clear(namespace, strings_only=strings_only)
        for _ in sweep:
            pass
        return sweep.num_gone

    def raise_floor(self, namespace: bytes) -> Sweep | None:
        """Nobody finds what the namespace (digest) holds now, from this moment on, whatever its
        size; who knows where it lies may read it until it is swept. Views and tickets stay. None:
        nobody has opened it here. Raises OutOfSpace (retry later)."""
        opened = self._namespaces.find(namespace)
        if opened is None:
            return None
        sweep = self._retiring.raise_floor(opened)
        self._tenants.renewed([opened])
        return sweep

    def evict(self, scope: EvictScope, now: float) -> Eviction:
        """What would go; it goes when the caller carries it out."""
        self.expire(now)
        return self._inspection.plan_eviction(scope, now)

    def expire(self, now: float) -> bool:
        """Ends tickets, up to MAX_EXPIRED_AT_ONCE entries whose time has come, and some of
        what is retired; true when more are due. Call it every 100 ms, and soon again when it says
        so."""
        self._pins.expire(now)
        self._tenants.tick(now)
        self._retiring.tick(now)
        more_to_sweep = self._retiring.sweep()
        return self._entries.expire(now) or more_to_sweep

    def count_suspended(self, seconds: float) -> None:
        """So long the machine slept until now, in all: entries' times to live count it. Tickets do
        not, since clients' clocks stood still with ours."""
        self._entries.expiry.suspended = seconds

    def report_corrupt(self, slot: int, generation: int) -> bool:
        """Recomputes the checksums of a committed entry and drops it when they differ (True)."""
        state = self._catalog.find(slot, generation)
        if state not in (SlotState.COMMITTED, SlotState.WITHDRAWN):
            return False
        if self._contents.is_intact(slot, generation):
            return False
        if self._catalog.committed.get(self._catalog.entry(slot)) == slot:
            self._entries.drop([slot], DropReason.CORRUPT)
        self._counters.corrupt += 1
        return True

    # -- engines ----------------------------------------------------------------------

    def publish_hbm(
        self,
        owner: OwnerId,
        namespace: int,
        stored: Sequence[BlockKey],
        removed: Sequence[BlockKey],
        cleared: bool,
    ) -> None:
        """Blocks in an engine's own device cache, published as events with tier hbm whose entry
        ids are b"k" + block key. Raises OutOfSpace beyond the bound a connection may publish."""
        opened, client = self._namespaces.get(namespace), self._owners.get(owner).client
        check_keys((*stored, *removed))
        if cleared:
            self._hbm.clear(owner, opened)
        self._hbm.discard(owner, opened, removed)
        self._hbm.add(owner, client, opened, stored)

    # -- operating ----------------------------------------------------------------------

    def list_blocks(
        self, *, namespace: bytes | None, key_prefix: bytes, limit: int, cursor: str, now: float
    ) -> EntryPage:
        """Committed entries in slot order. `namespace` b"" selects string entries."""
        return self._inspection.page(
            namespace=namespace, key_prefix=key_prefix, limit=limit, cursor=cursor, now=now
        )

    def info(self, entry: EntryId, now: float) -> EntryInfo | None:
        """As `list_blocks` shows it; None: it does not lie here, or is one request's own."""
        return self._inspection.info(entry, now)

    def ids_of(self, block: EntryId) -> list[EntryId]:
        """Of a block (b"k" + key), in every shard that was stored since the start, of whatever
        namespace; it need not be here."""
        return self._inspection.ids_of(block)

    def parent_of(self, entry: EntryId) -> bytes:
        """Key of the block before this one, as far as both lie in DRAM; else b""."""
        return self._inspection.parent_of(entry)

    def namespaces(self) -> list[Namespace]:
        """Those opened here since the start."""
        return [opened.namespace for opened in self._namespaces]

    def set_admission(self, rules: AdmissionRules) -> None:
        """Which blocks are stored when clients offer them, from now on."""
        self._admission.rules = rules

    def limit_tenants(self, caps: TenantBytes, shares: TenantBytes) -> None:
        """What blocks of a tenant may occupy at most, and keep against others, from now on."""
        self._tenants.limit(caps, shares)

    def tenants(self) -> list[TenantUsage]:
        """What each holds, the largest first."""
        return self._tenants.usage()

    def tenant_of(self, digest: str) -> str | None:
        """Of that namespace (hex); None when nobody has opened it here."""
        opened = self._namespaces.find(bytes.fromhex(digest)) if digest else None
        return opened.tenant if opened else None

    def block_tokens(self, digest: str) -> int:
        """Tokens of a block of that namespace (hex); 0 when nobody has opened it here."""
        opened = self._namespaces.find(bytes.fromhex(digest))
        return opened.namespace.block_tokens if opened else 0

    def explain(self, entry: EntryId) -> Explanation:
        return self._inspection.explain(entry)

    def stats(self, now: float) -> Stats:
        counters, pool = self._counters, self._pool
        return Stats(
            instance=str(self.instance),
            tiers=tier_stats(self._entries, len(self._hbm)),
            pins=counters.num_pins,
            tickets=len(self._pins),
            in_flight=len(self._reservations),
            runs=len(self._runs),
            fills=len(self._catalog.origins),
            request_scoped=len(self._catalog.request_scoped),
            quarantined=len(self._quarantine),
            clients=len(self._owners),
            namespaces=len(self._namespaces),
            segments=len(pool.segments),
            segments_granted=pool.num_held(Holder.GRANTED),
            segments_orphaned=pool.num_held(Holder.ORPHANED),
            segments_free=pool.num_held(Holder.FREE),
            refused_puts=counters.refused_puts,
            not_admitted=counters.not_admitted,
            double_releases=counters.double_releases,
            stale_notices=counters.stale_notices,
            hbm_blocks=len(self._hbm),
            events_seq=self.events.seq,
            uptime_s=now - self._started,
        )

    def audit(self) -> AuditReport:
        return audit(
            self._entries,
            self._reservations,
            self._runs,
            self._quarantine,
            self._reserved,
            self._pins,
        )
