"""Membership of a cluster of several machines, in etcd.

A member is one key under an etcd lease; what etcd no longer lists is gone. Nothing is watched: a
watch of etcd's can end without a word, so callers read the whole list again and again, and that is
the only truth they have. Several servers are asked in turn; while none answers, calls raise
StoreUnavailable, and whoever asked goes on with the last picture it had.

    PREFIX/members/KIND/ID   record, under the member's lease      revision = etcd's of that key
    PREFIX/floors            all floors, changed by compare-and-swap
"""

from __future__ import annotations

import base64
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec
from etcd3gw import Etcd3Client
from etcd3gw.exceptions import Etcd3Exception
from etcd3gw.lease import Lease

from ..errors import InvalidRequest, StoreTimeout, StoreUnavailable
from .records import Member, Record, Registration, kind_of
from .validate import check_registration, check_room, raised, taken

logger = logging.getLogger(__name__)

PREFIX = "moontide/1"
CALL_SECONDS = 1.5
"""For one server to answer; as many servers as there are may be asked for one call."""
MAX_ENDPOINTS = 9
MAX_ATTEMPTS = 50
"""To change what others change at the same time."""
DEFAULT_PORT = 2379
_API = "/v3/"

_T = TypeVar("_T")


class _Value(msgspec.Struct, frozen=True):
    record: Record


@dataclass(frozen=True, slots=True)
class _Found:
    """A key as etcd has it; `revision` 0: it has none."""

    value: bytes = b""
    revision: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    revision: int
    lease: int


class EtcdMembership:
    """Thread-safe. `endpoints` are HOST:PORT of servers of one etcd cluster (3.4 or newer, with its
    gRPC gateway)."""

    def __init__(self, endpoints: Sequence[str], *, prefix: str = PREFIX) -> None:
        self._endpoints = [_parse_endpoint(endpoint) for endpoint in endpoints]
        if not 0 < len(endpoints) <= MAX_ENDPOINTS:
            raise InvalidRequest(f"{len(endpoints)} etcd servers: name 1 to {MAX_ENDPOINTS}")
        self._prefix = prefix
        self._clients = threading.local()
        self._first = 0  # of the endpoints: the one that answered last
        self._held: dict[tuple[str, str], _Held] = {}  # by kind and id

    def register(self, record: Record, ttl_s: float) -> Registration:
        check_registration(record, ttl_s)
        key = self._key(record)
        value = msgspec.json.encode(_Value(record))
        lease = self._ask(lambda client: client.lease(math.ceil(ttl_s)).id)
        for _ in range(MAX_ATTEMPTS):
            found = self._find(key)
            holder = _decode(found)
            if holder is not None and holder.instance != record.instance:
                self._revoke(lease)
                raise taken(record, holder, self._remaining(found.lease))
            if not found.revision:
                check_room(len(self.members()))
            revision = self._swap(key, found.revision, value, lease)
            if revision:
                self._held[kind_of(record), record.id] = _Held(revision, lease)
                if found.lease and found.lease != lease:
                    self._revoke(found.lease)
                return Registration(record, revision, ttl_s)
        raise StoreTimeout(f"{key} was changed by others {MAX_ATTEMPTS} times meanwhile")

    def renew(self, registration: Registration) -> bool:
        record = registration.record
        held = self._held.get((kind_of(record), record.id))
        if held is None or held.revision != registration.revision:
            return False
        if self._ask(lambda client: Lease(held.lease, client).refresh()) <= 0:
            return False
        return self._find(self._key(record)).revision == held.revision  # not wiped or superseded

    def leave(self, registration: Registration) -> None:
        name = (kind_of(registration.record), registration.record.id)
        held = self._held.get(name)
        if held is not None and held.revision == registration.revision:
            self._revoke(held.lease)  # its key goes with it
            del self._held[name]

    def members(self) -> list[Member]:
        found = self._ask(lambda client: client.get_prefix(f"{self._prefix}/members/"))
        members = []
        for value, about in found:
            record = _decode(_Found(value))
            if record is not None:
                members.append(Member(record, int(about["mod_revision"])))
        return sorted(members, key=lambda member: (kind_of(member.record), member.record.id))

    def floors(self) -> dict[str, int]:
        return _decode_floors(self._find(self._floors_key))

    def raise_floors(self, namespaces: Collection[str], known: Mapping[str, int]) -> dict[str, int]:
        for _ in range(MAX_ATTEMPTS):
            found = self._find(self._floors_key)
            floors = raised(_decode_floors(found), namespaces, known)
            if self._swap(self._floors_key, found.revision, msgspec.json.encode(floors)):
                return floors
        raise StoreTimeout(f"the floors were changed by others {MAX_ATTEMPTS} times meanwhile")

    # -- keys -------------------------------------------------------------------------

    @property
    def _floors_key(self) -> str:
        return f"{self._prefix}/floors"

    def _key(self, record: Record) -> str:
        return f"{self._prefix}/members/{kind_of(record)}/{quote(record.id, safe='')}"

    def _find(self, key: str) -> _Found:
        found = self._ask(lambda client: client.get(key, metadata=True))
        if not found:
            return _Found()
        [(value, about)] = found
        return _Found(value, int(about["mod_revision"]), int(about.get("lease", 0)))

    def _swap(self, key: str, revision: int, value: bytes, lease: int = 0) -> int:
        """Writes the key if it has not changed since `revision` (0: if there is none); its new
        revision, 0 when it has."""
        compare = {"key": _text(key), "result": "EQUAL", "target": "MOD", "mod_revision": revision}
        put = {"key": _text(key), "value": _text(value), "lease": lease}
        change = {"compare": [compare], "success": [{"request_put": put}], "failure": []}
        answer = self._ask(lambda client: client.transaction(change))
        return int(answer["header"]["revision"]) if answer.get("succeeded") else 0

    def _remaining(self, lease: int) -> float:
        return self._ask(lambda client: float(max(Lease(lease, client).ttl(), 0)) if lease else 0.0)

    def _revoke(self, lease: int) -> None:
        """One that is unknown has ended."""
        try:
            self._ask(lambda client: Lease(lease, client).revoke())
        except StoreUnavailable as error:
            logger.info("etcd_lease_not_revoked error=%s", error)

    # -- servers ----------------------------------------------------------------------

    def _ask(self, question: Callable[[Etcd3Client], _T]) -> _T:
        """The answer of the first server that gives one. Raises StoreUnavailable."""
        reasons = []
        for offset in range(len(self._endpoints)):
            number = (self._first + offset) % len(self._endpoints)
            host, port = self._endpoints[number]
            try:
                answer = question(self._client(number))
            except (Etcd3Exception, OSError, ValueError, KeyError) as error:
                reasons.append(f"{host}:{port}: {_reason(error)}")
            else:
                self._first = number
                return answer
        raise StoreUnavailable(f"no etcd server answers ({'; '.join(reasons)})")

    def _client(self, number: int) -> Etcd3Client:
        """One a thread: their connections are not shared."""
        clients: dict[int, Etcd3Client] = self._clients.__dict__.setdefault("by_number", {})
        if number not in clients:
            host, port = self._endpoints[number]
            client = Etcd3Client(host, port, timeout=CALL_SECONDS, api_path=_API)
            client.session.trust_env = False  # no proxy stands between a cluster and its etcd
            clients[number] = client
        return clients[number]


def parse_endpoints(address: str) -> list[str]:
    """`HOST:PORT[,HOST:PORT]…`, as what follows `etcd://`."""
    return [endpoint.strip().rstrip("/") for endpoint in address.split(",") if endpoint.strip()]


def _parse_endpoint(endpoint: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]"):
        host, port = endpoint, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"etcd server {endpoint!r}: write HOST:PORT, or HOST:PORT,HOST:PORT")
    return host, int(port)


def _text(data: str | bytes) -> str:
    """As the gateway's JSON carries bytes."""
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def _decode(found: _Found) -> Record | None:
    """None: there is none, or nothing we understand."""
    try:
        return msgspec.json.decode(found.value, type=_Value).record if found.value else None
    except msgspec.MsgspecError:
        return None


def _decode_floors(found: _Found) -> dict[str, int]:
    """What is damaged is none: whoever knows floors writes them again."""
    try:
        return msgspec.json.decode(found.value, type=dict[str, int]) if found.value else {}
    except msgspec.MsgspecError:
        logger.warning("etcd_floors_damaged")
        return {}


def _reason(error: Exception) -> str:
    text = (getattr(error, "detail_text", None) or str(error) or type(error).__name__)[:200]
    if "Not Found" in text or "404" in text:
        return f"{text.strip()} (start etcd with enable-grpc-gateway: true)"
    return text.strip()
