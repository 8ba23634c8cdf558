"""Floors of namespaces in this daemon: raised here, heard of from the membership, kept on disk.

    raise                      membership (one higher) ─┐
    start, poll, peer's word   membership ──────────────┴─► in force here ──► our own record

In force means: what the namespace held is a miss in DRAM (Store.raise_floor) and nothing of it is
brought from disk (Tiering.raise_floor); answers wait until it is swept from DRAM, too. Our own
record outlives a membership that is in memory or was wiped, and names what the disk may still hold:
a start clears that before anything is served (ADR 0018). Until the record says that the disk is
clear, nothing of the namespace is written there: so a start that clears once more than it must
finds nothing that was stored above the floor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec

from ..durable import write_durably
from ..errors import StoreError, StoreUnavailable
from ..membership import Membership
from ..store import Store, Sweep
from .tiers import Tiering

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
_RECORD = "floors.json"
_DRAFT = ".floors.json.draft"
_FORMAT = 1
Write = Callable[[Path, Path, bytes], None]
"""See `write_durably`."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    floors: dict[str, int]  # by digest, hex
    on_disk: list[str]  # namespaces of which the disk may hold what lies below


class FloorKeeper:
    """Lives in the loop that owns the store. A membership that cannot be read leaves the last
    picture standing."""

    def __init__(
        self,
        store: Store,
        membership: Membership,
        directory: Path,
        tiering: Tiering | None,
        write: Write = write_durably,
    ) -> None:
        """Reads our own record and puts it in force; `write` replaces it. Raises StoreUnavailable
        when it is there and cannot be read."""
        self._store = store
        self._membership = membership
        self._directory = directory
        self._tiering = tiering
        self._write = write
        self._saving = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()
        self._sweeps: set[Sweep] = set()  # of what lies below floors that were raised since
        self._poll: asyncio.Task[None] | None = None
        self._saved = _read(directory / _RECORD)
        self._floors = dict(self._saved.floors)
        self._on_disk: dict[str, int] = {}  # namespace → floor below which the disk may hold some
        self._uncleared: set[str] = set()  # of these, what the disk could not clear
        self._closed: set[str] = set()  # namespaces of which nothing goes to disk
        for namespace in self._saved.on_disk:
            self._clear_disk(namespace)

    async def start(self) -> None:
        """What the membership says is in force when this returns; then it is polled."""
        await self.read()
        self._poll = asyncio.create_task(self._watch(), name="floors-watch")

    async def close(self) -> None:
        tasks = [*self._saves, *([self._poll] if self._poll is not None else [])]
        if self._poll is not None:
            self._poll.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def of(self, namespace: bytes) -> int:
        """The floor of a namespace (digest) that is in force here."""
        return self._floors.get(namespace.hex(), 0)

    async def raise_floors(self, namespaces: Collection[bytes]) -> dict[str, int]:
        """In force here, and durable, when it returns the new floors (by digest, hex). Raises
        StoreUnavailable, StoreTimeout, OutOfSpace (retry), InvalidRequest."""
        names = [namespace.hex() for namespace in namespaces]
        try:
            floors = await asyncio.to_thread(
                self._membership.raise_floors, names, dict(self._floors)
            )
            self._apply(floors)
            await self._save()
            await self._sweep()
        except OSError as error:
            raise StoreUnavailable(
                f"the floor could not be made durable: {error}; repair the disk, then repeat the "
                "call"
            ) from error
        return {name: floors[name] for name in names}

    async def read(self) -> None:
        """Puts in force what the membership knows and we did not, and tells it what it lost. What
        failed before is tried again."""
        async with self._reading:
            try:
                floors = await asyncio.to_thread(self._membership.floors)
                if any(floors.get(name, 0) < floor for name, floor in self._floors.items()):
                    floors = await asyncio.to_thread(
                        self._membership.raise_floors, (), dict(self._floors)
                    )
                self._apply(floors)
                for namespace in tuple(self._uncleared):
                    self._clear_disk(namespace)
                await self._save()
                await self._sweep()
            except (StoreError, OSError) as error:
                logger.warning("floors_unreadable error=%s", error)

    def _apply(self, floors: Mapping[str, int]) -> None:
        """Raises OutOfSpace; those before it are in force then."""
        news = {name: floor for name, floor in floors.items() if floor > self._floors.get(name, 0)}
        for name, floor in news.items():
            sweep = self._store.raise_floor(bytes.fromhex(name))
            if sweep is not None:
                self._sweeps.add(sweep)
            self._floors[name] = floor
            self._clear_disk(name)
            logger.info("floor_raised namespace=%s floor=%d", name[:16], floor)

    async def _sweep(self) -> None:
        """Then nobody reads what lies below, either, of those who know where from a look-up without
        a ticket."""
        for sweep in tuple(self._sweeps):
            for _ in sweep:
                await asyncio.sleep(0)  # let others have a turn
            self._sweeps.discard(sweep)

    def _clear_disk(self, namespace: str) -> None:
        """Without a tier it is left to the next start that has one."""
        floor = self._on_disk[namespace] = self._floors.get(namespace, 0)
        if self._tiering is not None:
            self._uncleared.discard(namespace)
            self._closed.add(namespace)
            self._tiering.raise_floor(namespace, partial(self._cleared, namespace, floor))

    def _cleared(self, namespace: str, floor: int, durable: bool) -> None:
        if self._on_disk.get(namespace) != floor:
            return  # raised again since
        if durable:
            del self._on_disk[namespace]
            self._save_soon()
        else:
            self._uncleared.add(namespace)

    def _save_soon(self) -> None:
        async def save() -> None:
            with contextlib.suppress(OSError):  # the next poll tries again
                await self._save()

        task = asyncio.get_running_loop().create_task(save())
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _save(self) -> None:
        """Writes our record, if it has changed, and ends what waited for that."""
        async with self._saving:
            record = _Record(format=_FORMAT, floors=dict(self._floors), on_disk=list(self._on_disk))
            if record != self._saved:
                await asyncio.to_thread(
                    self._write,
                    self._directory / _RECORD,
                    self._directory / _DRAFT,
                    msgspec.json.encode(record),
                )
                self._saved = record
            self._reopen()

    def _reopen(self) -> None:
        """What our record on disk knows to be clear of all that lies below the floor of now."""
        for name in tuple(self._closed):
            is_old = self._saved.floors.get(name) != self._floors.get(name)
            if not is_old and name not in self._on_disk and name not in self._saved.on_disk:
                assert self._tiering is not None
                self._closed.discard(name)
                self._tiering.reopen(name)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.read()
            except Exception:  # the task boundary
                logger.exception("floors_watch_failed")


def _read(path: Path) -> _Record:
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
        floors = {bytes.fromhex(name).hex(): floor for name, floor in record.floors.items()}
    except FileNotFoundError:
        return _Record(format=_FORMAT, floors={}, on_disk=[])
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise StoreUnavailable(
            f"cannot read {path}: {error}; without it, what lies below a floor could come back: "
            "repair it, or remove it together with the nvme directory"
        ) from error
    return _Record(format=_FORMAT, floors=floors, on_disk=record.on_disk)
