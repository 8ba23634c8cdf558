"""Both ends prove the cluster token, agree on a version, and on who is meant."""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable

from .. import errors, wire
from ..errors import AccessDenied, Malformed, OtherInstance, Refused, TransferError, Unavailable

MAX_INSTANCE_CHARACTERS = 512
_CODES: dict[str, type[TransferError]] = {
    error.code: error
    for error in (
        errors.AccessDenied,
        errors.OtherInstance,
        errors.VersionMismatch,
        errors.Busy,
        errors.Malformed,
    )
}


def greet(sock: socket.socket, token: bytes, *, client: str, server: str, deadline: float) -> int:
    """The client's side; the version both speak. Raises what the server refuses with, AccessDenied
    when it cannot prove the token, Malformed, Unavailable."""
    challenge = _receive(sock, wire.Challenge, deadline)
    nonce = secrets.token_bytes(wire.NONCE_BYTES)
    hello = wire.Hello(wire.OLDEST_VERSION, wire.WIRE_VERSION, client, server, nonce, b"")
    proof = wire.client_proof(token, challenge, hello)
    _send(sock, wire.Hello(*_fields(hello), proof), deadline)
    welcome = _receive(sock, wire.Welcome, deadline)
    expected = wire.server_proof(token, challenge, hello, welcome.version)
    if not hmac.compare_digest(expected, welcome.proof):
        raise AccessDenied(f"whoever answers for {server} does not hold the cluster token")
    return welcome.version


def receive_guest(
    sock: socket.socket,
    token: bytes,
    *,
    server: str,
    deadline: float,
    on_proved: Callable[[], None] = lambda: None,
) -> wire.Hello:
    """The server's side; who came. `on_proved` is called before the guest knows that it is
    welcome; one that is refused is told why. Raises Refused, Malformed, Unavailable."""
    challenge = wire.Challenge(secrets.token_bytes(wire.NONCE_BYTES))
    _send(sock, challenge, deadline)
    hello = _receive(sock, wire.Hello, deadline)
    try:
        version = _judge(token, challenge, hello, server)
    except Refused as error:
        refuse(sock, error)
        raise
    on_proved()
    welcome = wire.Welcome(version, wire.server_proof(token, challenge, hello, version))
    _send(sock, welcome, deadline)
    return hello


def refuse(sock: socket.socket, error: TransferError) -> None:
    """Tells why, if the socket takes it at once; the caller closes."""
    try:
        sock.send(encode_refusal(error), socket.MSG_DONTWAIT)
    except OSError:
        return  # it will see the connection end


def encode_refusal(error: TransferError) -> bytes:
    return wire.encode_body(wire.Refusal(error.code, str(error)[:512]))


def _judge(token: bytes, challenge: wire.Challenge, hello: wire.Hello, server: str) -> int:
    if len(hello.nonce) != wire.NONCE_BYTES or len(hello.client) > MAX_INSTANCE_CHARACTERS:
        raise AccessDenied(
            f"a nonce of {len(hello.nonce)} bytes from a client of {len(hello.client)} characters; "
            f"a nonce has {wire.NONCE_BYTES}, a name at most {MAX_INSTANCE_CHARACTERS}"
        )
    if not hmac.compare_digest(wire.client_proof(token, challenge, hello), hello.proof):
        raise AccessDenied("the proof does not match this cluster's token")
    if hello.server != server:
        raise OtherInstance(f"{hello.server} was asked for, {server} answers at this address")
    return wire.common_version(hello.oldest_version, hello.newest_version)


def _fields(hello: wire.Hello) -> tuple[int, int, str, str, bytes]:
    return hello.oldest_version, hello.newest_version, hello.client, hello.server, hello.nonce


def _send(sock: socket.socket, body: wire.Body, deadline: float) -> None:
    try:
        sock.settimeout(_left(deadline))
        sock.sendall(wire.encode_body(body))
    except OSError as error:
        raise Unavailable(f"handshake: {error}") from error


def _receive(sock: socket.socket, wanted: type[wire.BodyT], deadline: float) -> wire.BodyT:
    header = wire.decode_header(_receive_exactly(sock, wire.HEADER_BYTES, deadline))
    if header.length > wire.MAX_HANDSHAKE_BYTES:
        raise Malformed(f"{header.kind.name} before the handshake ended")
    data = _receive_exactly(sock, header.length, deadline)
    if header.kind is wire.Kind.REFUSED:
        refusal = wire.decode_body(header.kind, data, wire.Refusal)
        raise _CODES.get(refusal.code, Refused)(refusal.message)
    return wire.decode_body(header.kind, data, wanted)


def _receive_exactly(sock: socket.socket, num_bytes: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < num_bytes:
        try:
            sock.settimeout(_left(deadline))
            data = sock.recv(num_bytes - len(received))
        except OSError as error:
            raise Unavailable(f"handshake: {error}") from error
        if not data:
            raise Unavailable("handshake: the other side closed the connection")
        received += data
    return bytes(received)


def _left(deadline: float) -> float:
    """Seconds; a deadline that has passed is the error that a late socket raises."""
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining
