"""Floors of namespaces in this daemon: raised here, heard of from the membership, kept on disk.

    raise                      membership (one higher) ─┐
    start, poll, peer's word   membership ──────────────┴─► in force here ──► our own record

In force means: what the namespace held is a miss in DRAM (Store.raise_floor) and nothing of it is
brought from disk (Tiering.raise_floor); answers wait until it is swept from DRAM, too. Our own
record outlives a membership that is in memory or was wiped, and names what the disk may still hold:
a start clears that before anything is served (ADR 0018). Until the record says that the disk is
clear, nothing of the namespace is written there: so a start that clears once more than it must
finds nothing that was stored above the floor.

A clear of the whole cluster is a floor, too: of one namespace, of the string entries, or of
everything, which lifts all others with it (ADR 0026). The last two are recorded once the disk is
clear: a start that finds them higher in the membership than in its record clears once more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ..durable import write_durably
from ..errors import StoreError, StoreUnavailable
from ..membership import NODE_MARK, REMOVAL_MARK, Membership
from ..store import Store, Sweep
from .tiers import NOT_DURABLE, Tiering

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
DISK_POLL_SECONDS = 0.01
_RECORD = "floors.json"
_DRAFT = ".floors.json.draft"
_FORMAT = 1
_STRINGS = b"strings".hex()
_EVERYTHING = b"everything".hex()
_WHOLES: dict[str, str | None] = {_STRINGS: "", _EVERYTHING: None}
"""Names that are no namespace's digest, and what the disk calls what they mean."""
Write = Callable[[Path, Path, bytes], None]
"""See `write_durably`."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    floors: dict[str, int]  # by digest, hex
    on_disk: list[str]  # namespaces of which the disk may hold what lies below


class FloorKeeper:
    """Lives in the loop that owns the store. While the membership cannot be read, what it said last
    is in force."""

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
        self._saves: dict[asyncio.Task[None], None] = {}
        self._sweeps: dict[Sweep, None] = {}  # of what lies below floors that were raised since
        self._poll: asyncio.Task[None] | None = None
        self._saved = _read(directory / _RECORD)
        self._floors = dict(self._saved.floors)
        self._on_disk: dict[str, int] = {}  # name → floor below which the disk may hold some
        self._uncleared: set[str] = set()  # of these, what the disk could not clear
        self._closed: set[str] = set()  # namespaces of which nothing goes to disk
        for namespace in self._saved.on_disk:
            self._clear_disk(namespace)

    async def start(self) -> None:
        """What the membership says is in force when this returns; then it is polled. Raises like
        `read`."""
        await self.read()
        self._poll = asyncio.create_task(self._watch(), name="floors-watch")

    async def close(self) -> None:
        tasks = [*self._saves, *([self._poll] if self._poll is not None else [])]
        if self._poll is not None:
            self._poll.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def of(self, namespace: bytes) -> int:
        """The floor of a namespace (digest; b"": string entries) that is in force here."""
        return self._floors.get(_name_of(namespace), 0) + self._floors.get(_EVERYTHING, 0)

    async def raise_floors(self, namespaces: Collection[bytes]) -> dict[str, int]:
        """In force here, and durable, when it returns the new floors (by digest, hex). Raises
        StoreUnavailable, StoreTimeout, OutOfSpace (retry), InvalidRequest."""
        names = [namespace.hex() for namespace in namespaces]
        floors = await self._raise(names, self._retire)
        await self._sweep()
        return {name: floors[name] for name in names}

    async def clear(self, namespace: bytes | None) -> int:
        """In force here, and durable, when it returns how many entries went here: of a namespace
        (digest; b"": string entries), or of everything. Unlike a raise it leaves alone what clients
        of this store are writing. Raises like `raise_floors`."""
        name = _EVERYTHING if namespace is None else _name_of(namespace)
        cleared: list[Sweep] = []

        def retire(raised: str) -> Sweep | None:
            if raised != name or name in _WHOLES:
                sweep = self._retire(raised)
            else:
                sweep = self._store.begin_clear(namespace, strings_only=False)
            if raised == name and sweep is not None:
                cleared.append(sweep)
            return sweep

        await self._raise([name], retire)
        await self._until_durable(name)
        await self._sweep()
        return sum(sweep.num_gone for sweep in cleared)

    async def _raise(
        self, names: Sequence[str], retire: Callable[[str], Sweep | None]
    ) -> dict[str, int]:
        try:
            async with self._reading:  # or it would be put in force, and counted, as another's
                floors = await asyncio.to_thread(
                    self._membership.raise_floors, names, dict(self._floors)
                )
                self._apply(floors, retire)
            await self._save()
        except OSError as error:
            raise StoreUnavailable(
                f"the floor could not be made durable: {error}; repair the disk, then repeat the "
                "call"
            ) from error
        return floors

    async def _until_durable(self, name: str) -> None:
        """No start from this disk finds any more of it. Raises StoreUnavailable."""
        while self._on_disk.get(name) == self._floors[name] and self._tiering is not None:
            if name in self._uncleared:
                raise StoreUnavailable(NOT_DURABLE)
            await asyncio.sleep(DISK_POLL_SECONDS)

    async def read(self) -> None:
        """Puts in force what the membership knows and we did not, and tells it what it lost. What
        failed before is tried again. Raises StoreUnavailable, StoreTimeout, OutOfSpace (retry)."""
        async with self._reading:
            try:
                floors = await asyncio.to_thread(self._exchange, dict(self._floors))
            except OSError as error:
                raise StoreUnavailable(f"the membership cannot be read: {error}") from error
            self._apply(floors, self._retire)
            for namespace in tuple(self._uncleared):
                self._clear_disk(namespace)
            await self._try_to_save()
            await self._sweep()

    def _exchange(self, known: dict[str, int]) -> dict[str, int]:
        """What the membership says, which is told what it has lost. Blocks."""
        floors = self._membership.floors()
        if any(floors.get(name, 0) < floor for name, floor in known.items()):
            floors = self._membership.raise_floors((), known)
        return floors

    def _apply(self, floors: Mapping[str, int], retire: Callable[[str], Sweep | None]) -> None:
        """Raises OutOfSpace; those before it are in force then."""
        news = {
            name: floor
            for name, floor in floors.items()
            if floor > self._floors.get(name, 0) and _is_namespace(name)
        }
        for name, floor in news.items():
            sweep = retire(name)
            if sweep is not None:
                self._sweeps[sweep] = None
            self._floors[name] = floor
            self._clear_disk(name)
            logger.info("floor_raised namespace=%s floor=%d", name[:16], floor)

    def _retire(self, name: str) -> Sweep | None:
        if name in _WHOLES:
            return self._store.begin_clear(None, strings_only=name == _STRINGS)
        return self._store.raise_floor(bytes.fromhex(name))

    async def _sweep(self) -> None:
        """Then nobody reads what lies below, either, of those who know where from a look-up without
        a ticket."""
        for sweep in tuple(self._sweeps):
            for _ in sweep:
                await asyncio.sleep(0)  # let others have a turn
            self._sweeps.pop(sweep, None)

    def _clear_disk(self, namespace: str) -> None:
        """Without a tier it is left to the next start that has one."""
        floor = self._on_disk[namespace] = self._floors.get(namespace, 0)
        if self._tiering is None:
            return
        self._uncleared.discard(namespace)
        then = partial(self._cleared, namespace, floor)
        if namespace in _WHOLES:
            self._tiering.clear(_WHOLES[namespace], then)
        else:
            self._closed.add(namespace)
            self._tiering.raise_floor(namespace, then)

    def _cleared(self, namespace: str, floor: int, durable: bool) -> None:
        if self._on_disk.get(namespace) != floor:
            return  # raised again since
        if durable:
            del self._on_disk[namespace]
            self._save_soon()
        else:
            self._uncleared.add(namespace)

    def _save_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._try_to_save())
        self._saves[task] = None
        task.add_done_callback(self._saves.pop)

    async def _try_to_save(self) -> None:
        """What fails the next poll tries again."""
        try:
            await self._save()
        except OSError as error:
            logger.warning("floors_not_saved error=%s", error)

    async def _save(self) -> None:
        """Writes our record, if it has changed, and ends what waited for that."""
        async with self._saving:
            record = self._record()
            if record != self._saved:
                await asyncio.to_thread(
                    self._write,
                    self._directory / _RECORD,
                    self._directory / _DRAFT,
                    msgspec.json.encode(record),
                )
                self._saved = record
            self._reopen()

    def _record(self) -> _Record:
        on_disk = [name for name in self._on_disk if name not in _WHOLES]
        floors = dict(self._floors)
        for name in _WHOLES:
            if name in self._on_disk and self._tiering is not None:
                floors[name] = self._saved.floors.get(name, 0)
        return _Record(
            format=_FORMAT, floors={n: f for n, f in floors.items() if f}, on_disk=on_disk
        )

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
            except StoreError as error:
                logger.warning("floors_unreadable error=%s", error)
            except Exception:  # the task boundary
                logger.exception("floors_watch_failed")


def _is_namespace(name: str) -> bool:
    """Not a store's mark or a number of removals, nor what no store of this release writes."""
    try:
        return not name.startswith((NODE_MARK, REMOVAL_MARK)) and bytes.fromhex(name).hex() == name
    except ValueError:
        return False


def _name_of(namespace: bytes) -> str:
    return namespace.hex() or _STRINGS


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
