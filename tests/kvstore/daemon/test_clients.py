"""The registry of client processes."""

from __future__ import annotations

import asyncio

from moontide.kvstore.daemon.clients import ClientRegistry
from moontide.transfer.types import Instance


class Recorder:
    """A connection that notes what it is asked."""

    def __init__(self) -> None:
        self.revoked: list[int] = []

    def end(self) -> None: ...

    def revoke_segment(self, segment: int) -> None:
        self.revoked.append(segment)


def test_a_segment_is_asked_back_over_one_connection_after_the_other() -> None:
    loop = asyncio.new_event_loop()
    registry = ClientRegistry(
        loop, limit=4, holds_grants=lambda client: True, on_exit=lambda client: None
    )
    client = Instance.new("a")
    first, second = Recorder(), Recorder()
    registry.join(client, 0, 1, first)
    registry.join(client, 0, 2, second)
    for segment in range(4):
        registry.revoke(client, segment)
    assert (first.revoked, second.revoked) == ([0, 2], [1, 3])
    registry.leave(client, 1)
    registry.revoke(client, 9)
    assert (first.revoked, second.revoked) == ([0, 2], [1, 3, 9])
    registry.close()
    loop.close()
