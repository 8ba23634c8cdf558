"""Removals of blocks that this store was not there for.

Each namespace of which a block was ever removed in the cluster has a number in the membership, one
higher with each removal. Whoever carries a removal out writes its number down. A store that comes
back registers first and looks then: where the number is higher than its own, a block was removed
without it, nobody says which, and it forgets all blocks of that namespace (ADR 0029).

    settled ──the lease may have ended──► unsettled ──looked, and forgot──► settled
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from ..durable import write_durably
from ..errors import Busy, StoreError, StoreUnavailable
from ..membership import REMOVAL_MARK, Membership
from ..store import Store
from .tiers import NOT_DURABLE, Tiering

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_RECORD = "removals.json"
_DRAFT = ".removals.json.draft"


class BlockRemovals:
    """Lives in the loop that owns the store."""

    def __init__(
        self, store: Store, tiering: Tiering | None, membership: Membership, directory: Path
    ) -> None:
        self._store = store
        self._tiering = tiering
        self._membership = membership
        self._directory = directory
        self._writing = threading.Lock()
        self._seen = _read(directory / _RECORD)
        self._is_settled = False
        self._settling: asyncio.Task[None] | None = None

    def check_settled(self) -> None:
        """Raises Busy while it is not known what was removed without this store."""
        if not self._is_settled:
            raise Busy("this store finds out which blocks were removed without it: retry later")

    def unsettle(self) -> None:
        """Others may remove blocks without us: what is looked at now may not be all."""
        self._is_settled = False
        if self._settling is not None:
            self._settling.cancel()

    async def settle(self, seconds: float) -> None:
        """To be called once our record lies in the membership: forgets what may have been removed
        without us. What takes longer, or fails, goes on in the background."""
        await self.close()
        self._is_settled = False
        self._settling = asyncio.create_task(self._settle(), name="removals-settle")
        await asyncio.wait({self._settling}, timeout=seconds)

    async def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait({self._settling})

    async def count(self, namespaces: Collection[bytes]) -> dict[bytes, int]:
        """Numbers (by digest) of a removal that is about to be carried out: whoever is not there
        for it forgets those namespaces. Raises StoreError and OSError."""
        names = {_name_of(namespace.hex()): namespace for namespace in namespaces}
        known = {_name_of(digest): number for digest, number in self._seen.items()}
        floors = await asyncio.to_thread(self._membership.raise_floors, [*names], known)
        return {namespace: floors[name] for name, namespace in names.items()}

    async def note(self, numbers: Mapping[bytes, int]) -> None:
        """These are carried out here now, or were. What cannot be written down costs us those
        namespaces when we come back."""
        if not self._is_settled:
            return
        try:
            await asyncio.to_thread(self._write, {n.hex(): each for n, each in numbers.items()})
        except OSError as error:
            logger.warning("removals_not_saved error=%s", error)

    async def _settle(self) -> None:
        while not self._is_settled:
            try:
                missed = await asyncio.to_thread(self._missed)
                for digest in missed:
                    await self._forget(digest)
                await asyncio.to_thread(self._write, missed)
                self._is_settled = True
            except (StoreError, OSError) as error:
                logger.warning("removals_unread error=%r", error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # the task boundary
                logger.exception("removals_failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _forget(self, digest: str) -> None:
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def cleared(durable: bool) -> None:
            if not gone.done():  # we may wait no more
                gone.set_result(durable)

        sweep = self._store.begin_clear(bytes.fromhex(digest), strings_only=False)
        if self._tiering is None:
            cleared(True)
        else:
            self._tiering.clear(digest, cleared)
        for _ in sweep:
            await asyncio.sleep(0)  # let others have a turn
        if not await gone:
            raise StoreUnavailable(NOT_DURABLE)
        logger.info("blocks_forgotten namespace=%s reason=one-was-removed-without-us", digest[:16])

    def _missed(self) -> dict[str, int]:
        """By digest, the numbers that are higher than ours; the membership is told what it lost.
        Blocks."""
        mine = {_name_of(digest): number for digest, number in self._seen.items()}
        floors = self._membership.floors()
        if any(floors.get(name, 0) < number for name, number in mine.items()):
            floors = self._membership.raise_floors((), mine)
        return {
            name.removeprefix(REMOVAL_MARK): number
            for name, number in floors.items()
            if name.startswith(REMOVAL_MARK) and number > mine.get(name, 0)
        }

    def _write(self, numbers: Mapping[str, int]) -> None:
        """Blocks."""
        with self._writing:
            seen = {d: max(n, self._seen.get(d, 0)) for d, n in numbers.items()}
            merged = {**self._seen, **seen}
            if merged != self._seen:
                data = msgspec.json.encode(merged)
                write_durably(self._directory / _RECORD, self._directory / _DRAFT, data)
                self._seen = merged


def _name_of(digest: str) -> str:
    return REMOVAL_MARK + digest


def _read(path: Path) -> dict[str, int]:
    """One that cannot be read knows of nothing: then all that was ever removed is forgotten."""
    try:
        numbers = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
        return {bytes.fromhex(digest).hex(): number for digest, number in numbers.items()}
    except (OSError, ValueError, msgspec.MsgspecError):
        return {}
