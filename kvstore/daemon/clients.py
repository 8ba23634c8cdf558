"""Client processes and their ends.

Connections of one client instance share its segment grants. A grant, and the quarantine of an
aborted write, outlive the connection that caused them: only the end of the process proves that
nobody writes any more. So each local client is watched through a pidfd.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import Busy, Conflict
from ..types import Instance

logger = logging.getLogger(__name__)

MAX_CONNECTIONS_PER_CLIENT = 256
"""Of one instance: one that leaks them leaves some to others."""


class Connection(Protocol):
    """What the registry asks of a client's connection."""

    def end(self) -> None:
        """The client's process is gone."""

    def revoke_segment(self, segment: int) -> None:
        """The store wants a granted segment back."""


@dataclass(slots=True)
class _Client:
    pid: int  # 0: not on this machine, or in a foreign pid namespace
    pidfd: int = -1
    connections: dict[int, Connection] = field(default_factory=dict)  # by owner


class ClientRegistry:
    """Client instances that are connected, or may still write a segment. `on_exit` is called once
    for each: when its process has ended, or its last connection while it holds no grant."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int,
        holds_grants: Callable[[Instance], bool],
        on_exit: Callable[[Instance], None],
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._holds_grants = holds_grants
        self._on_exit = on_exit
        self._clients: dict[Instance, _Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def join(self, client: Instance, pid: int, owner: int, connection: Connection) -> None:
        """Counts the connection of `owner` to `client`.

        Raises Conflict when the instance is another process's, Busy when the registry is full or
        the client has MAX_CONNECTIONS_PER_CLIENT."""
        known = self._clients.get(client)
        if known is None:
            if len(self._clients) >= self._limit:
                raise Busy(
                    f"{len(self._clients)} client processes are attached, the limit; "
                    "raise --max-clients or retry later"
                )
            known = self._clients[client] = self._watch(client, pid)
        elif known.pid != pid:
            raise Conflict(f"client {client} is process {known.pid}, not {pid or 'a remote one'}")
        elif len(known.connections) >= MAX_CONNECTIONS_PER_CLIENT:
            raise Busy(
                f"client {client} has {len(known.connections)} connections, the limit of one: "
                "close some"
            )
        known.connections[owner] = connection

    def leave(self, client: Instance, owner: int) -> None:
        """Connection `owner` has ended. The store must have been told before."""
        known = self._clients.get(client)
        if known is None:
            return
        known.connections.pop(owner, None)
        if not known.connections and not (known.pidfd >= 0 and self._holds_grants(client)):
            self._forget(client)

    def revoke(self, client: Instance, segment: int) -> None:
        """Asks over one of the client's connections, the next time over another: nobody may be
        reading this one. Nothing happens when it has none."""
        known = self._clients.get(client)
        if known is not None and known.connections:
            owner, connection = next(iter(known.connections.items()))
            del known.connections[owner]
            known.connections[owner] = connection
            connection.revoke_segment(segment)

    def close(self) -> None:
        for known in self._clients.values():
            if known.pidfd >= 0:
                self._loop.remove_reader(known.pidfd)
                os.close(known.pidfd)
        self._clients.clear()

    def _watch(self, client: Instance, pid: int) -> _Client:
        if not pid:
            return _Client(pid)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it ended between connect and here; its socket will say so
            return _Client(pid)
        os.set_inheritable(pidfd, False)
        self._loop.add_reader(pidfd, self._forget, client)
        return _Client(pid, pidfd)

    def _forget(self, client: Instance) -> None:
        known = self._clients.pop(client)
        if known.pidfd >= 0:
            self._loop.remove_reader(known.pidfd)
            os.close(known.pidfd)
        for connection in list(known.connections.values()):
            connection.end()
        logger.debug("client_gone client=%s", client)
        self._on_exit(client)
