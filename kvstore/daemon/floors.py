"""Floors of namespaces in this daemon: raised here, heard of from the membership, kept on disk.

    raise                      membership (one higher) ─┐
    start, poll, peer's word   membership ──────────────┴─► in force here ──► our own record

In force means: what the namespace held is a miss in DRAM (Store.raise_floor) and nothing of it is
brought from disk (Tiering.raise_floor). Our own record outlives a membership that is in memory or
was wiped, and names what the disk may still hold: a start clears that before anything is served
(ADR 0018). So a kill before the record says that the disk is clear costs what the namespace was
given since: misses, and nothing from below the floor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from ..durable import write_durably
from ..errors import StoreError, StoreUnavailable
from ..membership import Membership
from ..store import Store
from .tiers import Tiering

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
_RECORD = "floors.json"
_DRAFT = ".floors.json.draft"
_FORMAT = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    floors: dict[str, int]  # by digest, hex
    on_disk: list[str]  # namespaces of which the disk may hold what lies below


class FloorKeeper:
    """Lives in the loop that owns the store. A membership that cannot be read leaves the last
    picture standing."""

    def __init__(
        self, store: Store, membership: Membership, directory: Path, tiering: Tiering | None
    ) -> None:
        """Reads our own record and puts it in force. Raises StoreUnavailable when it is there and
        cannot be read."""
        self._store = store
        self._membership = membership
        self._directory = directory
        self._tiering = tiering
        self._saving = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()
        self._poll: asyncio.Task[None] | None = None
        record = _read(directory / _RECORD)
        self._floors = record.floors
        self._on_disk: dict[str, int] = {}  # namespace → clears of it that are under way
        for namespace in record.on_disk:
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
        except OSError as error:
            raise StoreUnavailable(
                f"the floor could not be made durable: {error}; repair the disk, then repeat the "
                "call"
            ) from error
        return {name: floors[name] for name in names}

    async def read(self) -> None:
        """Puts in force what the membership knows and we did not, and tells it what it lost."""
        async with self._reading:
            try:
                floors = await asyncio.to_thread(self._membership.floors)
                if any(floors.get(name, 0) < floor for name, floor in self._floors.items()):
                    floors = await asyncio.to_thread(
                        self._membership.raise_floors, (), dict(self._floors)
                    )
                if self._apply(floors):
                    await self._save()
            except (StoreError, OSError) as error:
                logger.warning("floors_unreadable error=%s", error)

    def _apply(self, floors: Mapping[str, int]) -> bool:
        """Whether any was news. Raises OutOfSpace; those before it are in force then."""
        news = {name: floor for name, floor in floors.items() if floor > self._floors.get(name, 0)}
        for name, floor in news.items():
            self._store.raise_floor(bytes.fromhex(name))
            self._floors[name] = floor
            self._clear_disk(name)
            logger.info("floor_raised namespace=%s floor=%d", name[:16], floor)
        return bool(news)

    def _clear_disk(self, namespace: str) -> None:
        if self._tiering is None:
            return

        def cleared(durable: bool) -> None:
            """One that failed stays in our record: the next start clears again."""
            if durable:
                self._on_disk[namespace] -= 1
                if not self._on_disk[namespace]:
                    del self._on_disk[namespace]
                    self._save_soon()

        self._on_disk[namespace] = self._on_disk.get(namespace, 0) + 1
        self._tiering.raise_floor(namespace, cleared)

    def _save_soon(self) -> None:
        async def save() -> None:
            with contextlib.suppress(OSError):  # then the next start clears once more
                await self._save()

        task = asyncio.get_running_loop().create_task(save())
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def _save(self) -> None:
        async with self._saving:
            record = _Record(format=_FORMAT, floors=dict(self._floors), on_disk=list(self._on_disk))
            await asyncio.to_thread(
                write_durably,
                self._directory / _RECORD,
                self._directory / _DRAFT,
                msgspec.json.encode(record),
            )

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
