"""The first exchange of a connection: who may talk to the store, in which version, and whether it
shares memory.

Shared memory needs proof, never an address: the connection is a unix socket (descriptors arrive or
they do not), the client runs under this kernel boot, and its process can be watched for its end.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from moontide.transfer.types import boot_id

from .. import wire
from ..errors import AccessDenied, InvalidRequest
from ..slots import LAYOUT_VERSION
from ..store import OwnerId, Store
from ..types import Instance
from .answers import Outgoing
from .budget import Budget
from .clients import ClientRegistry, Connection
from .drain import Drain
from .floors import FloorKeeper
from .peer import Peer
from .sources import Sources
from .tiers import Tiering

NONCE_BYTES = 32
MAX_COPIED_BYTES = 256 << 20
"""Copies of extents on their way to all clients: those that do not read may not fill the memory."""
RUNS_VERSION = 2
"""Clients of older ones know no runs."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """What the kernel says about a new connection. `nonce` is the challenge a remote one must
    answer, None on the unix socket, which its file mode guards."""

    pid: int
    nonce: bytes | None


class Gate:
    """Turns a Hello into a Peer and its Welcome, or refuses it."""

    def __init__(
        self,
        store: Store,
        *,
        loop: asyncio.AbstractEventLoop,
        token: str,
        shared_memory: bool,
        inline_bytes: int,
        max_clients: int,
        poll_seconds: float,
        stats: Callable[[], bytes],
        sources: Sources,
        tiering: Tiering | None,
        floors: FloorKeeper | None = None,
        drain: Drain | None = None,
    ) -> None:
        self._store = store
        self._token = token.encode()
        self._shared_memory = shared_memory
        self._inline_bytes = inline_bytes
        self._poll_seconds = poll_seconds
        self._stats = stats
        self._sources = sources
        self._tiering = tiering
        self._floors = floors
        self._drain = drain
        self._copies = Budget(MAX_COPIED_BYTES, "copies of extents")
        self._last_owner = 0
        self.clients = ClientRegistry(
            loop, limit=max_clients, holds_grants=store.holds_grants, on_exit=store.client_exited
        )

    def admit(
        self, hello: wire.Hello, visitor: Visitor, connection: Connection
    ) -> tuple[Peer, Outgoing]:
        """Raises AccessDenied, InvalidRequest (version or client id), Conflict, Busy."""
        self._check_proof(hello, visitor)
        version = _common_version(hello)
        client = _parse_client(hello.client)
        if client == self._store.instance:
            raise InvalidRequest(f"client id {client} is this store's own: give another nonce")
        is_near = hello.boot_id == boot_id()
        shared_memory = self._shared_memory and visitor.pid > 0 and is_near
        self._last_owner += 1
        owner = OwnerId(self._last_owner)
        self.clients.join(client, visitor.pid, owner, connection)
        self._store.connect(owner, client)
        if hello.quiesced:
            self._store.client_quiesced(client)
        peer = Peer(
            store=self._store,
            owner=owner,
            client=client,
            shared_memory=shared_memory,
            version=version,
            stats=self._stats,
            clock=time.monotonic,
            copies=self._copies,
            sources=self._sources,
            tiering=self._tiering,
            floors=self._floors,
            drain=self._drain,
        )
        poll_seconds = self._poll_seconds if is_near else 0.0
        return peer, self._welcome(version, poll_seconds, shared_memory=shared_memory)

    def leave(self, peer: Peer) -> None:
        """The connection has ended: what it held is given up."""
        self._store.disconnect(peer.owner)
        self.clients.leave(peer.client, peer.owner)

    def _check_proof(self, hello: wire.Hello, visitor: Visitor) -> None:
        if visitor.nonce is None:
            return
        expected = wire.prove(self._token, visitor.nonce, hello.client)
        if not hmac.compare_digest(expected, hello.proof):
            raise AccessDenied(
                "the proof does not match this store's token; pass the token of its --token-file"
            )

    def _welcome(self, version: int, poll_seconds: float, *, shared_memory: bool) -> Outgoing:
        store = self._store
        reply = wire.Welcome(
            version=version,
            instance=str(store.instance),
            boot_id=boot_id(),
            layout_version=LAYOUT_VERSION,
            shared_memory=shared_memory,
            segment_sizes=list(store.segment_sizes),
            slot_table_bytes=store.slot_table_bytes,
            inline_bytes=self._inline_bytes,
            max_entry_bytes=store.max_entry_bytes,
            run_bytes=store.run_bytes if shared_memory and version >= RUNS_VERSION else 0,
            poll_seconds=poll_seconds,
            sums_may_follow=True,
        )
        return Outgoing(reply, descriptors=(store.slot_table_descriptor,) if shared_memory else ())


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _common_version(hello: wire.Hello) -> int:
    version = min(hello.newest_version, wire.WIRE_VERSION)
    if version < max(hello.oldest_version, wire.OLDEST_VERSION):
        raise InvalidRequest(
            f"client speaks wire versions {hello.oldest_version}..{hello.newest_version}, this "
            f"store {wire.OLDEST_VERSION}..{wire.WIRE_VERSION}; upgrade the older one"
        )
    return version


def _parse_client(text: str) -> Instance:
    try:
        client = Instance.parse(text)
    except ValueError as error:
        raise InvalidRequest(
            f"client id {text[:100]!r} is not NODE/PROCESS/NONCE: {error}"
        ) from error
    if len(client.nonce) != 16 or len(text) > 512:
        raise InvalidRequest(
            f"client id of {len(text)} characters with a nonce of {len(client.nonce)} bytes; "
            "at most 512 characters and exactly 16 bytes"
        )
    return client
