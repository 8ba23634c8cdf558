"""Passing file descriptors over a unix socket."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence

from .errors import HandoverRefused

MAX_DESCRIPTORS = 64
"""Most descriptors in one message."""
_INT_BYTES = array.array("i").itemsize


def send_with_descriptors(
    sock: socket.socket, data: bytes | memoryview, descriptors: Sequence[int]
) -> int:
    """One `sendmsg`: the descriptors travel with the first byte of `data`. Returns how many bytes
    were taken (the rest goes by plain `send`); raises BlockingIOError when none were. The caller
    keeps its descriptors."""
    if not data or not 1 <= len(descriptors) <= MAX_DESCRIPTORS:
        raise ValueError(
            f"{len(descriptors)} descriptors with {len(data)} bytes of data; "
            f"give 1..{MAX_DESCRIPTORS} descriptors and at least one byte"
        )
    rights = array.array("i", descriptors)
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive_with_descriptors(
    sock: socket.socket, num_bytes: int, max_descriptors: int = MAX_DESCRIPTORS
) -> tuple[bytes, list[int]]:
    """One `recvmsg` of at most `num_bytes`; b"" means the peer closed. Descriptors are
    close-on-exec and become the caller's. Raises HandoverRefused, with all of them closed, when
    some did not fit or were lost."""
    data, messages, flags, _ = sock.recvmsg(
        num_bytes, socket.CMSG_SPACE(max_descriptors * _INT_BYTES), socket.MSG_CMSG_CLOEXEC
    )
    descriptors = array.array("i")
    for level, kind, content in messages:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) // _INT_BYTES * _INT_BYTES])
    if flags & socket.MSG_CTRUNC:
        close_descriptors(descriptors)
        raise HandoverRefused(
            f"descriptors were lost on the way: {len(descriptors)} of them arrived, at most "
            f"{max_descriptors} were expected (or this process is at its open-file limit)"
        )
    return data, list(descriptors)


def close_descriptors(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
