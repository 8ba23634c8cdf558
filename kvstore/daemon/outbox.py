"""Replies of one connection on their way out.

Heads are coalesced; values go from pool memory to the socket without a copy and stay pinned until
the last byte is with the kernel. Descriptors travel with the first byte of their reply.
"""

from __future__ import annotations

import array
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_BUFFERS = 256
"""Buffers of one sendmsg; the kernel takes at most 1024."""


@dataclass(slots=True)
class _Item:
    data: memoryview
    descriptors: tuple[int, ...] = ()
    on_sent: Callable[[], None] | None = None


class Outbox:
    """Queue of buffers to send. The caller bounds it by looking at `num_bytes` and `num_items`."""

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self.num_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def num_items(self) -> int:
        return len(self._items)

    def put(
        self,
        head: bytes,
        payload: Sequence[memoryview] = (),
        *,
        descriptors: tuple[int, ...] = (),
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """`on_sent` runs once: when the last byte has left, or when the outbox is dropped. The
        descriptors stay the caller's."""
        self._items.append(_Item(memoryview(head), descriptors))
        self._items.extend(_Item(part) for part in payload if len(part))
        self._items[-1].on_sent = on_sent
        self.num_bytes += len(head) + sum(map(len, payload))

    def send(self, sock: socket.socket) -> int:
        """One sendmsg of as much as the socket takes. Raises BlockingIOError when it takes none,
        OSError when the connection is gone."""
        batch: list[memoryview] = []
        for item in self._items:
            if len(batch) == MAX_BUFFERS or (batch and item.descriptors):
                break
            batch.append(item.data)
        ancillary = []
        if descriptors := self._items[0].descriptors:
            rights = array.array("i", descriptors)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        sent = sock.sendmsg(batch, ancillary)
        self._drop_front(sent)
        return sent

    def drop(self) -> None:
        """The connection is gone: nothing more is sent, every `on_sent` still runs."""
        items, self._items = self._items, deque()
        self.num_bytes = 0
        for item in items:
            if item.on_sent:
                item.on_sent()

    def _drop_front(self, sent: int) -> None:
        self.num_bytes -= sent
        while self._items and sent >= len(self._items[0].data):
            item = self._items.popleft()
            sent -= len(item.data)
            if item.on_sent:
                item.on_sent()
        if sent:
            front = self._items[0]
            front.data = front.data[sent:]
            front.descriptors = ()
