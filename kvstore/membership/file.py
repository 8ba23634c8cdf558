"""Membership in a directory of one machine: a small file a member.

Leases are in CLOCK_BOOTTIME together with the boot id, so a step of the wall clock changes nothing
and a file left by an earlier boot is dead. Files are replaced atomically and read without a lock;
whoever changes something holds `lock` (flock), which the kernel drops with its holder. Who was
killed is known by a cut lifeline before the lease runs out."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from moontide.transfer.types import boot_id

from ..durable import write_durably
from ..errors import StoreTimeout
from .lifelines import Lifelines, try_lock
from .records import Member, Record, Registration, kind_of
from .validate import MAX_MEMBERS, MAX_TTL_S, check_registration, check_room, raised, taken

logger = logging.getLogger(__name__)

_FORMAT = 1
_SUFFIX = ".member"
_LIFELINE = ".alive"
_LOCK = "lock"
_REVISION = "revision"
_FLOORS = "floors"
_DRAFT = ".draft-"
_MAX_FILE_BYTES = 16 << 10
_MAX_FLOORS_BYTES = 1 << 20
_LOCK_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.005


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    boot_id: str
    expires: float  # CLOCK_BOOTTIME seconds
    revision: int
    record: Record


class _Floors(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    floors: dict[str, int]


def boottime() -> float:
    """Seconds since boot, suspend included; no wall-clock step changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class FileMembership:
    """Several processes of one machine share `directory`. Files in it that are not ours, or
    damaged, are left alone and logged once. Floors lie in one file, which is durable."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = boottime,
        boot: Callable[[], str] = boot_id,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._boot = boot
        self._reported: set[str] = set()
        self._lifelines = Lifelines()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def register(self, record: Record, ttl_s: float) -> Registration:
        check_registration(record, ttl_s)
        with self._locked():
            now = self._clock()
            files = dict(self._read_all())
            path = self._path(record)
            holder = self._live(files.get(path), now)
            if holder is None:
                check_room(sum(self._live(file, now) is not None for file in files.values()))
            elif holder.record.instance != record.instance and not self._is_dead(path):
                raise taken(record, holder.record, holder.expires - now)
            revision = self._next_revision(files.values())
            self._write(path, record, revision, now + ttl_s)
            self._lifelines.hold(path.with_suffix(_LIFELINE))
            return Registration(record, revision, ttl_s)

    def renew(self, registration: Registration) -> bool:
        with self._locked():
            now = self._clock()
            path = self._path(registration.record)
            held = self._live(self._read(path), now)
            if held is None or held.revision != registration.revision:
                return False
            self._write(path, held.record, held.revision, now + registration.ttl_s)
            return True

    def leave(self, registration: Registration) -> None:
        with self._locked():
            path = self._path(registration.record)
            held = self._read(path)
            if held is not None and held.revision == registration.revision:
                path.unlink(missing_ok=True)
                self._lifelines.release(path.with_suffix(_LIFELINE))

    def members(self) -> list[Member]:
        now = self._clock()
        live = [file for _, file in self._read_all() if self._live(file, now) is not None]
        live.sort(key=lambda file: (kind_of(file.record), file.record.id))
        return [Member(file.record, file.revision) for file in live]

    def floors(self) -> dict[str, int]:
        try:
            with (self._directory / _FLOORS).open("rb") as opened:
                read = msgspec.json.decode(opened.read(_MAX_FLOORS_BYTES), type=_Floors)
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._report(_FLOORS)  # whoever knows floors writes them again
            return {}
        return read.floors if read.format == _FORMAT else {}

    def raise_floors(self, namespaces: Collection[str], known: Mapping[str, int]) -> dict[str, int]:
        with self._locked():
            floors = raised(self.floors(), namespaces, known)
            data = msgspec.json.encode(_Floors(format=_FORMAT, floors=floors))
            write_durably(self._directory / _FLOORS, self._draft(), data)
            return floors

    # -- files ------------------------------------------------------------------------

    def _is_dead(self, path: Path) -> bool:
        return self._lifelines.is_cut(path.with_suffix(_LIFELINE))

    def _path(self, record: Record) -> Path:
        return self._directory / f"{kind_of(record)}-{quote(record.id, safe='')}{_SUFFIX}"

    def _live(self, file: _File | None, now: float) -> _File | None:
        """`file` if its lease lives. A lease that ends later than any could is a damaged one."""
        if file is None or file.boot_id != self._boot():
            return None
        return file if now < file.expires <= now + MAX_TTL_S else None

    def _read_all(self) -> list[tuple[Path, _File]]:
        found = []
        try:
            names = sorted(os.listdir(self._directory))
        except FileNotFoundError:  # wiped while we run: everybody registers again
            return []
        for name in names:
            if (
                name in (_LOCK, _REVISION, _FLOORS)
                or name.startswith(_DRAFT)
                or name.endswith(_LIFELINE)
            ):
                continue
            path = self._directory / name
            file = self._read(path) if name.endswith(_SUFFIX) else None
            if file is not None:
                found.append((path, file))
            elif path.exists():
                self._report(name)
            if len(found) > 2 * MAX_MEMBERS:
                break
        return found

    def _read(self, path: Path) -> _File | None:
        """None: missing, foreign or damaged."""
        try:
            with path.open("rb") as opened:
                raw = opened.read(_MAX_FILE_BYTES + 1)
            file = msgspec.json.decode(raw, type=_File)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return file if file.format == _FORMAT and self._path(file.record) == path else None

    def _report(self, name: str) -> None:
        if name in self._reported or len(self._reported) >= MAX_MEMBERS:
            return
        self._reported.add(name)
        logger.warning("membership_file_ignored path=%s", self._directory / name)

    def _write(self, path: Path, record: Record, revision: int, expires: float) -> None:
        file = _File(
            format=_FORMAT,
            boot_id=self._boot(),
            expires=expires,
            revision=revision,
            record=record,
        )
        self._replace(path, msgspec.json.encode(file))

    def _replace(self, path: Path, data: bytes) -> None:
        """No fsync: a lease does not outlive the boot."""
        draft = self._draft()
        try:
            draft.write_bytes(data)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def _draft(self) -> Path:
        return self._directory / f"{_DRAFT}{os.getpid()}-{secrets.token_hex(4)}"

    def _next_revision(self, files: Iterable[_File]) -> int:
        """One more than any before, also when a member file or the counter is gone."""
        counter = self._directory / _REVISION
        try:
            last = int(counter.read_bytes()[:32])
        except (OSError, ValueError):
            last = 0
        revision = max([last, *(file.revision for file in files)]) + 1
        self._replace(counter, b"%d" % revision)
        return revision

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Raises StoreTimeout when another holder does not let go in time."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise StoreTimeout(
                        f"{self._directory / _LOCK} was held by another process for "
                        f"{_LOCK_SECONDS:g} s"
                    )
                time.sleep(_LOCK_POLL_SECONDS)
            self._remove_old_drafts()
            yield
        finally:
            os.close(descriptor)

    def _remove_old_drafts(self) -> None:
        """Of writers that were killed between writing and renaming. The lock is held: any draft is
        left over."""
        for draft in self._directory.glob(f"{_DRAFT}*"):
            draft.unlink(missing_ok=True)
