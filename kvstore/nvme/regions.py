"""All regions of the tier: which are there, which is written, which goes next."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from moontide.transfer import FileAccess, aligned_buffer
from moontide.transfer.types import PAGE_BYTES

from ..errors import Corrupt
from .assistant import Assistant
from .identity import IDENTITY_FILE, Identity
from .log_format import UnknownVersion
from .region import DRAFT_SUFFIX, Region
from .settings import NvmeSettings
from .storage import DISK_ERRORS, RegionFile, Storage

logger = logging.getLogger(__name__)
_NAME = re.compile(r"region-([0-9a-f]{8})\.log")
_DRAFT = re.compile(_NAME.pattern + re.escape(DRAFT_SUFFIX))
_NO_DAMAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""A file that cannot be opened for one of these may well be whole."""
INDEX_DIRECTORY = "index"
SET_ASIDE_DIRECTORY = "set-aside"


class Regions:
    """The region files of a directory. `live` maps ids to regions, oldest first; a region that is
    not in it is gone, whatever the index still says. Only the writer's thread changes anything
    once the tier is open, `finish` aside."""

    def __init__(self, settings: NvmeSettings, storage: Storage, identity: Identity) -> None:
        self._settings = settings
        self._storage = storage
        self._directory = settings.directory
        self._floor = settings.free_floor()
        self.tier = b""
        self.identity = identity
        self.live: dict[int, Region] = {}
        self.active: Region | None = None
        self.foreign: list[str] = []
        self.set_aside_names: list[str] = []
        self._set_aside_bytes = 0
        self._can_direct = True
        self._next_id = 1
        self._spare: RegionFile | None = None  # of the region that went last
        self._begun: Region | None = None  # that comes next
        self._opener = Assistant("nvme-opener", most=1)

    def scan(self, tier: bytes | None) -> None:
        """Finds what lies in the directory: regions of this tier are opened, drafts and damaged
        regions removed, those of another format version set aside, foreign files left alone. Where
        nothing else knows which tier this is (None), most regions say. Raises one of DISK_ERRORS
        when a region cannot be opened that may be whole."""
        opened: list[Region] = []
        for path in sorted(self._directory.iterdir()):
            if path.name in (INDEX_DIRECTORY, SET_ASIDE_DIRECTORY, IDENTITY_FILE):
                continue
            if name := _NAME.match(path.name):  # whatever is there, the name is taken
                self._next_id = max(self._next_id, int(name[1], 16) + 1)
            if _NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                opened += self._open(path)
            elif _DRAFT.fullmatch(path.name) and path.is_file():
                logger.info("nvme_draft_removed path=%s", path)
                path.unlink()
            else:
                self._leave_alone(path)
        self.tier = self.identity.name(tier or _most_common_tier(opened))
        self._adopt(opened)
        self._next_id = max([self._next_id, *(region + 1 for region in self.live)])
        self._count_set_aside()

    def _open(self, path: Path) -> list[Region]:
        try:
            return [Region.open(self._storage, path)]
        except UnknownVersion as error:
            logger.warning("nvme_region_set_aside path=%s reason=%s", path, error)
            self.set_aside(path)
        except (Corrupt, *DISK_ERRORS) as error:
            if getattr(error, "errno", None) in _NO_DAMAGE:
                raise
            logger.warning("nvme_region_damaged path=%s reason=%s", path, error)
            self._storage.unlink(path)
        return []

    def _adopt(self, opened: Sequence[Region]) -> None:
        """A copy of a region is set aside."""
        found: dict[int, Region] = {}
        for region in opened:
            path = region.file.path
            if region.tier != self.tier:
                region.file.close()
                self._leave_alone(path)
            elif region.id in found:
                logger.warning(
                    "nvme_region_twice path=%s other=%s", path, found[region.id].file.path
                )
                region.file.close()
                self.set_aside(path)
            else:
                found[region.id] = region
        self.live = {region: found[region] for region in sorted(found)}

    def _leave_alone(self, path: Path) -> None:
        logger.warning("nvme_foreign_file path=%s", path)
        self.foreign.append(path.name)

    def set_aside(self, path: Path) -> None:
        """Moves what is not ours to judge out of the way; it keeps counting as used."""
        shelf = self._directory / SET_ASIDE_DIRECTORY
        shelf.mkdir(exist_ok=True)
        target, number = shelf / path.name, 1
        while target.exists():
            number += 1
            target = shelf / f"{path.name}.{number}"
        self._storage.rename(path, target)
        self._count_set_aside()

    def create(self) -> Region:
        """A new active region; the caller has made room. Raises one of DISK_ERRORS."""
        self._opener.drain()
        region, self._begun = self._begun or self._begin(), None
        draft = region.file.path
        path = self._directory / f"region-{region.id:08x}.log"
        try:
            self._storage.rename(draft, path)
        except DISK_ERRORS:
            region.retire()
            self._unlink(draft)
            self._unlink(path)
            raise
        region.file.path = path
        self._next_id += 1
        self.active = self.live[region.id] = region
        return region

    def begin_next(self) -> None:
        """The region after the active one is begun meanwhile, so that `create` has only to name it.
        There is room for it."""
        self._opener.drain()
        if self._begun is None:
            self._opener.give(self._begin_aside)

    def _begin_aside(self, _: bool) -> bool:
        try:
            self._begun = self._begin()
        except DISK_ERRORS as error:
            logger.warning("nvme_region_not_begun region=%d reason=%s", self._next_id, error)
        return True

    def _begin(self) -> Region:
        """A draft until it gets its name, so that a crash leaves nothing of it. Raises one of
        DISK_ERRORS."""
        file = self._spare
        if file is None:
            draft = self._directory / f"region-{self._next_id:08x}.log{DRAFT_SUFFIX}"
            file = self._storage.open_file(draft, FileAccess.CREATE)
        try:
            return Region.begin(
                file, self._settings.region_size, tier=self.tier, region=self._next_id
            )
        except DISK_ERRORS:
            self._unlink(file.path)
            raise
        finally:
            self._spare = None

    def seal(self) -> None:
        """Ends the active region: it is cut to what was written. One without a batch goes."""
        region, self.active = self.active, None
        if region is not None:
            self.finish(region)

    def finish(self, region: Region) -> None:
        """As `seal`, for one that is not the active one any more. Any thread."""
        if region.num_records == 0:
            self.remove(region)
            return
        with contextlib.suppress(*DISK_ERRORS):  # then it stays longer than it need be
            region.cut(region.end)

    def oldest(self) -> Region | None:
        """The region that is evicted next; never the active one."""
        for region in list(self.live.values()):
            if region is not self.active:
                return region
        return None

    def after(self, region: int) -> int:
        """The region that was opened after this one, or a number that none has."""
        return min((other for other in list(self.live) if other > region), default=region + 1)

    def remove(self, region: Region) -> bool:
        """Its entries are gone at once. False: its file could not be removed; the next start finds
        it."""
        self.live.pop(region.id, None)
        region.retire()
        return self._unlink(region.file.path)

    def recycle(self, region: Region) -> None:
        """As `remove`, but the next region gets the file, which is a draft meanwhile. Not where the
        file system is nearly full: the index may need the room first."""
        self._opener.drain()
        is_tight = self._free_bytes() < self._settings.region_size
        if is_tight or self.spare_bytes or (file := region.retire_to_recycle()) is None:
            self.remove(region)
            return
        self.live.pop(region.id, None)
        draft = file.path.with_name(file.path.name + DRAFT_SUFFIX)
        try:
            self._storage.rename(file.path, draft)
        except DISK_ERRORS as error:
            logger.warning("nvme_region_not_recycled path=%s reason=%s", file.path, error)
            file.close()
            self._unlink(file.path)
            self._unlink(draft)
        else:
            file.path = draft
            self._spare = file

    def drop_spare(self) -> bool:
        """False: its file could not be removed."""
        self._opener.drain()
        spare = self._spare if self._begun is None else self._begun.file
        self._spare = self._begun = None
        if spare is None:
            return True
        spare.close()
        return self._unlink(spare.path)

    def _unlink(self, path: Path) -> bool:
        try:
            self._storage.unlink(path)
        except DISK_ERRORS as error:
            logger.error("nvme_region_stays path=%s reason=%s", path, error)
            return False
        return True

    @property
    def room(self) -> int:
        """What the active region still takes."""
        return 0 if self.active is None else self._settings.region_size - self.active.tip

    @property
    def spare_bytes(self) -> int:
        """Of a file that waits for the next region."""
        is_there = self._spare is not None or self._begun is not None
        return self._settings.region_size if is_there else 0

    def used_bytes(self, index_bytes: int) -> int:
        """On disk: regions (the active one is reserved whole), index, files set aside."""
        total = index_bytes + self._set_aside_bytes + self.spare_bytes
        for region in list(self.live.values()):
            total += self._settings.region_size if region is self.active else region.tip
        return total

    def excess_bytes(self, index_bytes: int, *, wanted: int) -> int:
        """How much must go before `wanted` more bytes keep capacity and free-space floor; ≤ 0:
        nothing."""
        spare = min(self.spare_bytes, wanted)
        over = self.used_bytes(index_bytes) - spare + wanted - self._settings.capacity_bytes
        return max(over, wanted - spare - self._free_bytes())

    def _free_bytes(self) -> int:
        """Above the floor."""
        return self._storage.free_bytes(self._directory) - self._floor

    def is_direct(self) -> bool:
        """Whether nothing has gone through the page cache for want of direct I/O."""
        return self._can_direct and all(
            region.file.is_direct for region in list(self.live.values())
        )

    def try_io(self) -> None:
        """Writes and reads a page as later ones will be, to know before anything depends on it
        whether the file system takes direct I/O."""
        path = self._directory / f"region-{0:08x}.log{DRAFT_SUFFIX}"
        file = self._storage.open_file(path, FileAccess.CREATE)
        page = aligned_buffer(PAGE_BYTES)
        try:
            file.write_from([page], 0)
            file.read_into([page], 0)
        except DISK_ERRORS as error:  # a full disk: regions will tell
            logger.warning("nvme_trial_failed path=%s reason=%s", path, error)
        finally:
            self._can_direct = file.is_direct
            file.close()
            self._storage.unlink(path)
        if not self._can_direct:
            logger.warning("nvme_no_direct_io directory=%s using=page cache", self._directory)

    def close(self) -> None:
        for region in self.live.values():
            region.retire()
        self.drop_spare()
        self._opener.close()
        self.identity.close()

    def _count_set_aside(self) -> None:
        shelf = self._directory / SET_ASIDE_DIRECTORY
        paths = [path for path in sorted(shelf.rglob("*")) if path.is_file()]
        self.set_aside_names = [str(path.relative_to(shelf)) for path in paths]
        self._set_aside_bytes = sum(path.stat().st_blocks * 512 for path in paths)
        if self._set_aside_bytes:
            logger.warning("nvme_set_aside bytes=%d path=%s", self._set_aside_bytes, shelf)


def _most_common_tier(regions: Sequence[Region]) -> bytes | None:
    counts = Counter(region.tier for region in regions)
    return counts.most_common(1)[0][0] if counts else None
