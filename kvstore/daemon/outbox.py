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

from .budget import Budget

ITEM_BYTES = 256
"""What a buffer in the queue takes beside its bytes."""
MAX_BUFFERS = 256
"""Buffers of one sendmsg; the kernel takes at most 1024."""


@dataclass(slots=True)
class _Item:
    data: memoryview
    held_bytes: int = ITEM_BYTES  # of the daemon's own memory
    descriptors: tuple[int, ...] = ()
    on_sent: Callable[[], None] | None = None


class Outbox:
    """Queue of buffers to send. The caller bounds it by looking at `num_bytes` and `num_items`, and
    all of them by looking at `memory`, where heads and items are counted."""

    def __init__(self, memory: Budget) -> None:
        self._memory = memory
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
        held_bytes = len(head) + ITEM_BYTES
        self._items.append(_Item(memoryview(head), held_bytes, descriptors))
        self.num_bytes += len(head)
        for part in payload:
            if len(part):
                self._items.append(_Item(part))
                self.num_bytes += len(part)
                held_bytes += ITEM_BYTES
        self._items[-1].on_sent = on_sent
        self._memory.add(held_bytes)

    def send(self, sock: socket.socket) -> int:
        """One send of as much as the socket takes. Raises BlockingIOError when it takes none,
        OSError when the connection is gone."""
        first = self._items[0]
        if len(self._items) == 1 and not first.descriptors:
            sent = sock.send(first.data)
        else:
            sent = sock.sendmsg(self._batch(), _rights(first.descriptors))
        self._drop_front(sent)
        return sent

    def _batch(self) -> list[memoryview]:
        batch: list[memoryview] = []
        for item in self._items:
            if len(batch) == MAX_BUFFERS or (batch and item.descriptors):
                break
            batch.append(item.data)
        return batch

    def drop(self) -> None:
        """The connection is gone: nothing more is sent, every `on_sent` still runs."""
        items, self._items = self._items, deque()
        self.num_bytes = 0
        self._memory.give_back(sum(item.held_bytes for item in items))
        for item in items:
            if item.on_sent:
                item.on_sent()

    def _drop_front(self, sent: int) -> None:
        self.num_bytes -= sent
        while self._items and sent >= len(self._items[0].data):
            item = self._items.popleft()
            sent -= len(item.data)
            self._memory.give_back(item.held_bytes)
            if item.on_sent:
                item.on_sent()
        if sent:
            front = self._items[0]
            front.data = front.data[sent:]
            front.descriptors = ()


def _rights(descriptors: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
