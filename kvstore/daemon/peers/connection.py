"""One connection to a peer's data port: the client's side of the kvstore wire, on this loop.

  open: Challenge → Hello with proof → Welcome of the expected instance
  then: requests pipelined, replies by id, until either end closes

What is asked has an answer, a typed error or a timeout. A ticket that arrives after its asker gave
up is released at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from typing import TypeVar

from moontide.transfer import TlsEndpoint
from moontide.transfer.types import boot_id

from ... import wire
from ...errors import ERRORS_BY_CODE, Busy, InvalidRequest, StoreError, StoreUnavailable
from ...membership import StoreRecord

GREETING_SECONDS = 3.0
MAX_PENDING = 1024
"""Requests whose answers are still to come, given up ones included."""

MAX_TOLD_CHARACTERS = 500
"""Of what a peer says it refuses with: it is logged, and passed on to clients."""

_DROP_UNSENT = struct.pack("ii", 1, 0)
"""What a given up connection did not get through may not arrive when its link is mended: pins would
be taken for nobody."""
_Reply = TypeVar("_Reply", bound=wire.Reply)


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """Who asks: this daemon's instance, the cluster's token, and the certificate where peers speak
    TLS."""

    instance: str
    token: bytes
    tls: TlsEndpoint | None = None


class PeerConnection:
    """Greeted. `run` must be running while anything is asked."""

    def __init__(
        self, record: StoreRecord, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.heard_at = time.monotonic()
        self.namespaces: dict[bytes, int] = {}  # digest → the peer's number
        self._record = record
        self._reader = reader
        self._writer = writer
        self._pending: dict[int, asyncio.Future[wire.Reply]] = {}
        self._last_request = 0
        self.version = wire.OLDEST_VERSION  # until the greeting has agreed on another
        self.shares_boot = False  # it runs under our kernel

    @classmethod
    async def open(cls, record: StoreRecord, identity: LinkIdentity) -> PeerConnection:
        """Raises OSError, TimeoutError, EOFError and StoreError: AccessDenied for another token,
        StoreUnavailable when another instance answers at the address."""
        try:
            return await cls._open(record, identity)
        except OSError as error:
            if identity.tls is None or isinstance(error, TimeoutError):
                raise
            told = identity.tls.explain(error, f"store {record.id} ({record.data_address})")
            raise StoreUnavailable(str(told)) from error

    @classmethod
    async def _open(cls, record: StoreRecord, identity: LinkIdentity) -> PeerConnection:
        host, _, port = record.data_address.rpartition(":")
        context = identity.tls.client_context() if identity.tls is not None else None
        async with asyncio.timeout(GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
            connection = cls(record, reader, writer)
            try:
                await connection._greet(identity)
            except BaseException:
                writer.transport.abort()
                raise
        return connection

    async def _greet(self, identity: LinkIdentity) -> None:
        _, challenge = await self._receive()
        if not isinstance(challenge, wire.Challenge):
            raise self._refusal(challenge, "instead of a challenge")
        self._write(
            wire.Hello(
                oldest_version=wire.OLDEST_VERSION,
                newest_version=wire.WIRE_VERSION,
                client=identity.instance,
                boot_id=boot_id(),
                quiesced=False,
                proof=wire.prove(identity.token, challenge.nonce, identity.instance),
            ),
            0,
        )
        _, welcome = await self._receive()
        if not isinstance(welcome, wire.Welcome):
            raise self._refusal(welcome, "instead of a welcome")
        if welcome.instance != self._record.instance:
            raise StoreUnavailable(
                f"{self._record.data_address} is instance {welcome.instance} now, "
                f"not {self._record.instance}"
            )
        self.version = welcome.version
        self.shares_boot = welcome.boot_id == boot_id()

    async def run(self) -> None:
        """Takes replies until the connection ends, which it raises (OSError, EOFError,
        InvalidRequest for malformed bytes). Whoever waits for one gets StoreUnavailable."""
        try:
            while True:
                request_id, reply = await self._receive()
                self.heard_at = time.monotonic()
                future = self._pending.pop(request_id, None)
                if future is None:
                    continue  # what the peer tells unasked
                if future.done():
                    self._release(reply)
                else:
                    future.set_result(reply)
        finally:
            self.close()

    def close(self) -> None:
        """Idempotent. What the peer held for this connection, it gives up."""
        self._writer.transport.abort()
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(StoreUnavailable(f"{self._name} hung up"))
                future.exception()  # its asker may be gone

    async def ask(self, message: wire.Request, kind: type[_Reply]) -> _Reply:
        """The caller bounds the wait. Raises Busy, StoreUnavailable, and what the peer refuses
        with."""
        if len(self._pending) >= MAX_PENDING:
            raise Busy(f"{self._name} owes {MAX_PENDING} answers, the limit; retry later")
        if self._writer.transport.is_closing():
            raise StoreUnavailable(f"{self._name} hung up")
        self._last_request = self._last_request % 0xFFFFFFFF + 1
        future: asyncio.Future[wire.Reply] = asyncio.get_running_loop().create_future()
        self._pending[self._last_request] = future
        self._write(message, self._last_request)
        reply = await future
        if isinstance(reply, kind):
            return reply
        raise self._refusal(reply, f"to {type(message).__name__}")

    def tell(self, message: wire.Request) -> None:
        """Asks without waiting for the answer; nothing happens when the connection is over."""
        if not self._writer.transport.is_closing():
            self._write(message, 0)

    async def _receive(self) -> tuple[int, wire.Reply]:
        header = wire.decode_header(await self._reader.readexactly(wire.HEADER.size))
        if header.payload_bytes:
            raise InvalidRequest(f"{self._name} sent a payload where none was asked for")
        body = await self._reader.readexactly(header.body_bytes)
        return header.request_id, wire.decode_reply(body)

    def _write(self, message: wire.Request, request_id: int) -> None:
        self._writer.write(wire.encode_frame(message, request_id, version=self.version))

    def _release(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.BlocksReply | wire.LookupReply) and reply.ticket:
            with contextlib.suppress(OSError):
                self.tell(wire.Unpin(reply.ticket))

    def _refusal(self, reply: wire.Reply, what: str) -> StoreError:
        if isinstance(reply, wire.Failure):
            error = ERRORS_BY_CODE.get(reply.code, StoreError)
            told = " ".join(reply.message[:MAX_TOLD_CHARACTERS].split())
            return error(f"{self._name}: {told}")
        return InvalidRequest(f"{self._name} answered {type(reply).__name__} {what}")

    @property
    def _name(self) -> str:
        return f"store {self._record.id} ({self._record.data_address})"
