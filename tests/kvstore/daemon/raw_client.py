"""The wire protocol by hand: what a correct client sends, and what a hostile one does."""

from __future__ import annotations

import array
import mmap
import os
import secrets
import socket
from typing import Any, NamedTuple

import xxhash

from moontide.kvstore import wire
from moontide.transfer.types import Instance, boot_id

TIMEOUT_SECONDS = 10.0


class Answer(NamedTuple):
    request_id: int
    message: Any
    payload: bytes
    descriptors: list[int]


class RawClient:
    """One connection. Closes the descriptors it got with itself."""

    def __init__(self, address: str) -> None:
        """`unix:PATH` or `HOST:PORT`."""
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            target: Any = address[5:]
        else:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            host, port = address.rsplit(":", 1)
            target = (host, int(port))
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect(target)
        self.instance = Instance("test", os.getpid(), secrets.token_bytes(16))
        self.version = wire.OLDEST_VERSION
        self._last_id = 0
        self._descriptors: list[int] = []

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        self._close_descriptors()

    def hand_over(self) -> socket.socket:
        """The socket is the caller's from now on."""
        self._close_descriptors()
        return self.socket

    def _close_descriptors(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def hello(self, *, token: str = "", **changes: Any) -> Answer:
        """Greets, answering the challenge first when a `token` is given. The answer is the
        daemon's first message when it is no challenge."""
        proof = b""
        if token:
            first = self.receive()
            challenge = first.message
            if not isinstance(challenge, wire.Challenge):
                return first
            proof = wire.prove(token.encode(), challenge.nonce, str(self.instance))
        fields = {
            "oldest_version": 1,
            "newest_version": wire.WIRE_VERSION,
            "client": str(self.instance),
            "boot_id": boot_id(),
            "quiesced": False,
            "proof": proof,
        }
        self.send(wire.Hello(**(fields | changes)))
        answer = self.receive()
        if isinstance(answer.message, wire.Welcome):
            self.version = answer.message.version
        return answer

    def send(self, message: Any, payload: bytes = b"") -> int:
        return self.send_part(message, payload, len(payload))

    def send_part(self, message: Any, payload: bytes, num_bytes: int) -> int:
        """Of the payload only its first bytes."""
        self._last_id += 1
        head = wire.encode_frame(message, self._last_id, len(payload), version=self.version)
        self.socket.sendall(head + payload[:num_bytes])
        return self._last_id

    def call(self, message: Any, payload: bytes = b"") -> Answer:
        request_id = self.send(message, payload)
        answer = self.receive()
        assert answer.request_id == request_id
        return answer

    def call_among(self, message: Any, payload: bytes = b"") -> Answer:
        """As `call`, where answers to earlier requests may come first; those are dropped."""
        request_id = self.send(message, payload)
        while (answer := self.receive()).request_id != request_id:
            pass
        return answer

    def receive(self) -> Answer:
        """Raises EOFError when the daemon hung up."""
        head = self._read(wire.HEADER.size)
        header = wire.decode_header(head)
        assert header.version == self.version or header.request_id == 1
        message = wire.decode_reply(self._read(header.body_bytes))
        payload = self._read(header.payload_bytes)
        descriptors, self._fresh = self._fresh, []
        return Answer(header.request_id, message, payload, descriptors)

    _fresh: list[int] = []  # noqa: RUF012 - replaced, never changed in place

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            piece, ancillary, flags, _ = self.socket.recvmsg(
                min(num_bytes - len(data), 1 << 20), socket.CMSG_SPACE(16)
            )
            assert not flags & socket.MSG_CTRUNC
            for _level, _kind, rights in ancillary:
                got = array.array("i", rights).tolist()
                self._fresh = [*self._fresh, *got]
                self._descriptors += got
            if not piece:
                raise EOFError("the daemon hung up")
            data += piece
        return bytes(data)

    # -- shorthands -----------------------------------------------------------------------

    def put(self, key: str, value: bytes, **options: Any) -> tuple[int, str]:
        message = put_message([(key, value)], **options)
        result: tuple[int, str] = self.call(message, value).message.results[0]
        return result

    def get(self, key: str) -> bytes | None:
        answer = self.call(wire.Get([entry_id(key)]))
        if answer.message.sizes[0] < 0:
            return None
        assert xxhash.xxh3_64_intdigest(answer.payload) == answer.message.checksums[0]
        return answer.payload


def entry_id(key: str) -> bytes:
    return b"s" + key.encode()


def put_message(items: list[tuple[str, bytes]], **options: Any) -> wire.Put:
    return wire.Put(
        [entry_id(key) for key, _ in items],
        [len(value) for _, value in items],
        [xxhash.xxh3_64_intdigest(value) for _, value in items],
        **options,
    )


def local_client(path: object, instance: Instance | None = None, **changes: Any) -> RawClient:
    """A greeted client on the unix socket; connections with one `instance` are one client's."""
    return _greeted(RawClient(f"unix:{path}"), "", instance, **changes)


def remote_client(address: str, token: str) -> RawClient:
    """A greeted client on the data port."""
    return _greeted(RawClient(address), token, None)


def _greeted(client: RawClient, token: str, instance: Instance | None, **changes: Any) -> RawClient:
    client.instance = instance or client.instance
    try:
        answer = client.hello(token=token, **changes)
        assert isinstance(answer.message, wire.Welcome), answer
    except BaseException:
        client.close()
        raise
    return client


def map_whole(descriptor: int, num_bytes: int, access: int) -> mmap.mmap:
    return mmap.mmap(descriptor, num_bytes, access=access)
