"""Membership inside one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from .records import Member, Record, Registration, kind_of
from .validate import check_registration, check_room, raised, taken


@dataclass(frozen=True, slots=True)
class _Lease:
    record: Record
    revision: int
    expires: float


class MemoryMembership:
    """Thread-safe. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._revision = 0
        self._floors: dict[str, int] = {}

    def register(self, record: Record, ttl_s: float) -> Registration:
        check_registration(record, ttl_s)
        with self._lock:
            now = self._clock()
            self._expire(now)
            name = (kind_of(record), record.id)
            holder = self._leases.get(name)
            if holder is None:
                check_room(len(self._leases))
            elif holder.record.instance != record.instance:
                raise taken(record, holder.record, holder.expires - now)
            self._revision += 1
            self._leases[name] = _Lease(record, self._revision, now + ttl_s)
            return Registration(record, self._revision, ttl_s)

    def renew(self, registration: Registration) -> bool:
        with self._lock:
            now = self._clock()
            self._expire(now)
            name = (kind_of(registration.record), registration.record.id)
            lease = self._leases.get(name)
            if lease is None or lease.revision != registration.revision:
                return False
            self._leases[name] = _Lease(lease.record, lease.revision, now + registration.ttl_s)
            return True

    def leave(self, registration: Registration) -> None:
        with self._lock:
            name = (kind_of(registration.record), registration.record.id)
            lease = self._leases.get(name)
            if lease is not None and lease.revision == registration.revision:
                del self._leases[name]

    def members(self) -> list[Member]:
        with self._lock:
            self._expire(self._clock())
            return [
                Member(lease.record, lease.revision) for _, lease in sorted(self._leases.items())
            ]

    def floors(self) -> dict[str, int]:
        with self._lock:
            return dict(self._floors)

    def raise_floors(self, namespaces: Collection[str], known: Mapping[str, int]) -> dict[str, int]:
        with self._lock:
            self._floors = raised(self._floors, namespaces, known)
            return dict(self._floors)

    def _expire(self, now: float) -> None:
        for name in [name for name, lease in self._leases.items() if lease.expires <= now]:
            del self._leases[name]
