"""What engines say lies in their own device caches. Advisory: it ends with the connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moontide.transfer.types import Instance

from ..errors import OutOfSpace
from ..events import EventKind
from ..types import Tier
from .event_log import EventLog, Holding
from .namespaces import OpenNamespace
from .types import OwnerId

MAX_BLOCKS_PER_OWNER = 1 << 20
_TIER = Tier.HBM


class _Published:
    """Blocks one connection has published, by namespace (digest, hex)."""

    def __init__(self, client: Instance) -> None:
        self.client = client
        self.blocks: dict[str, set[bytes]] = {}

    def count(self) -> int:
        return sum(map(len, self.blocks.values()))


class HbmDirectory:
    """Entry ids in its events are b"k" + block key: an engine publishes a block when it holds all
    of it. Two connections of one client are told apart only here: events name the client."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._owners: dict[OwnerId, _Published] = {}

    def __len__(self) -> int:
        return sum(published.count() for published in self._owners.values())

    def add(
        self, owner: OwnerId, client: Instance, namespace: OpenNamespace, keys: Sequence[bytes]
    ) -> None:
        """Raises OutOfSpace beyond the bound, with nothing changed."""
        published = self._owners.setdefault(owner, _Published(client))
        blocks = published.blocks.setdefault(namespace.hex, set())
        new = [key for key in dict.fromkeys(keys) if key not in blocks]
        if published.count() + len(new) > MAX_BLOCKS_PER_OWNER:
            raise OutOfSpace(
                f"{published.count()} hbm blocks are published and {len(new)} more were given; a "
                f"connection publishes at most {MAX_BLOCKS_PER_OWNER}"
            )
        blocks.update(new)
        self._announce("stored", client, namespace.hex, new)

    def discard(self, owner: OwnerId, namespace: OpenNamespace, keys: Iterable[bytes]) -> None:
        published = self._owners.get(owner)
        if published is None:
            return
        blocks = published.blocks.get(namespace.hex, set())
        gone = [key for key in dict.fromkeys(keys) if key in blocks]
        blocks.difference_update(gone)
        self._announce("removed", published.client, namespace.hex, gone)

    def clear(self, owner: OwnerId, namespace: OpenNamespace) -> None:
        published = self._owners.get(owner)
        if published is not None and published.blocks.pop(namespace.hex, set()):
            self._clear_all_but_others(owner, published, namespace.hex)

    def end_owner(self, owner: OwnerId) -> None:
        published = self._owners.pop(owner, None)
        for namespace, blocks in published.blocks.items() if published else ():
            if blocks and published:
                self._clear_all_but_others(owner, published, namespace)

    def holdings(self) -> list[Holding]:
        return [
            Holding(str(published.client), _TIER, namespace, [b"k" + key for key in blocks])
            for published in self._owners.values()
            for namespace, blocks in published.blocks.items()
            if blocks
        ]

    def _clear_all_but_others(self, owner: OwnerId, ended: _Published, namespace: str) -> None:
        """`cleared`, then again what other connections of the same client still hold."""
        self._events.publish("cleared", instance=str(ended.client), tier=_TIER, namespace=namespace)
        for other, published in self._owners.items():
            if other != owner and published.client == ended.client:
                held = list(published.blocks.get(namespace, ()))
                self._announce("stored", ended.client, namespace, held)

    def _announce(
        self, kind: EventKind, client: Instance, namespace: str, keys: Sequence[bytes]
    ) -> None:
        if keys:
            self._events.publish(
                kind,
                instance=str(client),
                tier=_TIER,
                namespace=namespace,
                entries=[b"k" + key for key in keys],
            )
