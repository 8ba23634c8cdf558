"""One greeted connection to a daemon, used blocking: a request, its reply, before a deadline."""

from __future__ import annotations

import itertools
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from moontide.transfer.types import Instance, boot_id

from ... import wire
from ...errors import ERRORS_BY_CODE, StoreError, StoreTimeout, StoreUnavailable
from ..deadline import Deadline
from .address import Address, TcpAddress
from .frames import Buffers, ConnectionLost, Frame, FrameReader, FrameWriter

_serials = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this client is to the daemon at `address`."""

    address: Address
    token: str = field(repr=False)
    instance: Instance


def raise_failure(failure: wire.Failure) -> NoReturn:
    """Raises the error that the daemon named."""
    raise ERRORS_BY_CODE.get(failure.code, StoreError)(failure.message)


class Connection:
    """Owns its socket and the descriptors not yet taken from it. Not thread-safe. After a timeout
    or ConnectionLost only `close` may be called: a late reply would answer the wrong request.
    `on_notice` takes each unasked message; False: it is not known."""

    def __init__(self, sock: socket.socket) -> None:
        self.serial = next(_serials)
        self.sock = sock
        self.reader = FrameReader(sock)
        self.writer = FrameWriter(sock)
        self.welcome: wire.Welcome
        self.on_notice: Callable[[wire.Reply], bool] = _refuse_notice
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    def fileno(self) -> int:
        return self.sock.fileno()

    def request(
        self, message: wire.Request, deadline: Deadline, payload: Buffers = ()
    ) -> tuple[wire.Reply, memoryview]:
        """The reply (a Failure too) and its payload. Raises StoreTimeout, ConnectionLost."""
        request_id = self.writer.add(message, payload)
        self._send(deadline)
        while (frame := self._receive(deadline)).request_id != request_id:
            if frame.request_id or not self.on_notice(frame.message):
                raise ConnectionLost(f"the store answered request {frame.request_id}, never made")
        return frame.message, frame.payload

    def take_notices(self) -> None:
        """Handles what the daemon sent unasked since the last request. Raises ConnectionLost, with
        `sent` False, when the connection has ended meanwhile."""
        while self._readable.poll(0):
            try:
                self.reader.receive()
                while frame := self.reader.next():
                    if frame.request_id or not self.on_notice(frame.message):
                        raise ConnectionLost("the store sent a reply to no request")
            except ConnectionLost as lost:
                lost.sent = False
                raise

    def _send(self, deadline: Deadline) -> None:
        sent_bytes = 0
        try:
            while self.writer:
                self.sock.settimeout(deadline.check("sending to the store"))
                sent_bytes += self.writer.send()
        except TimeoutError as error:
            raise StoreTimeout(
                f"the store took no request within {deadline.timeout_s:g} s"
            ) from error
        except OSError as error:
            raise ConnectionLost(
                f"connection to the store failed: {error}", sent=sent_bytes > 0
            ) from error

    def _receive(self, deadline: Deadline) -> Frame:
        while (frame := self.reader.next()) is None:
            try:
                self.sock.settimeout(deadline.check("waiting for the store"))
                self.reader.receive()
            except TimeoutError as error:
                raise StoreTimeout(
                    f"the store did not answer within {deadline.timeout_s:g} s"
                ) from error
        return frame

    def greet(self, identity: Identity, deadline: Deadline) -> None:
        """Hello and Welcome. `quiesced` is always true: the caller has waited for its writes."""
        proof = b""
        if isinstance(identity.address, TcpAddress):
            frame = self._receive(deadline)
            if not isinstance(frame.message, wire.Challenge):
                raise StoreUnavailable(f"{identity.address} does not answer like a store")
            proof = wire.prove(identity.token.encode(), frame.message.nonce, str(identity.instance))
        hello = wire.Hello(
            oldest_version=wire.OLDEST_VERSION,
            newest_version=wire.WIRE_VERSION,
            client=str(identity.instance),
            boot_id=boot_id(),
            quiesced=True,
            proof=proof,
        )
        welcome, _ = self.request(hello, deadline)
        if isinstance(welcome, wire.Failure):
            raise_failure(welcome)
        if not isinstance(welcome, wire.Welcome):
            raise StoreUnavailable(f"{identity.address} does not answer like a store")
        self.welcome = welcome

    def close(self) -> None:
        """Idempotent."""
        self.reader.close()
        self.sock.close()


def _refuse_notice(message: wire.Reply) -> bool:
    return False


def open_connection(identity: Identity, deadline: Deadline) -> Connection:
    """Raises StoreUnavailable (nobody there, or not a store), AccessDenied, InvalidRequest (no
    common version), StoreTimeout."""
    try:
        connection = Connection(identity.address.open(deadline.check("connecting to the store")))
    except OSError as error:
        raise StoreUnavailable(f"no store at {identity.address}: {error}") from error
    try:
        connection.greet(identity, deadline)
    except ConnectionLost as lost:
        connection.close()
        raise StoreUnavailable(f"{identity.address} closed the connection: {lost}") from lost
    except BaseException:
        connection.close()
        raise
    return connection
