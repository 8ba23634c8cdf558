"""Connections, and the client processes behind them."""

from __future__ import annotations

from moontide.transfer.types import Instance

from ..errors import Conflict, InvalidRequest, OutOfSpace
from .types import FILL_OWNER, OwnerId

MAX_OWNERS = 65536


class Owner:
    """One connection and what ends with it: slots it reserved, its runs, tickets of its views."""

    __slots__ = ("client", "id", "reserved", "runs", "views")

    def __init__(self, owner_id: OwnerId, client: Instance) -> None:
        self.id = owner_id
        self.client = client
        self.reserved: set[int] = set()
        self.runs: set[int] = set()
        self.views: set[bytes] = set()


class Owners:
    """Connections, and the store's own owner, which makes the fills and is never counted."""

    def __init__(self, store: Instance) -> None:
        self.fills = Owner(FILL_OWNER, store)
        self._owners: dict[OwnerId, Owner] = {FILL_OWNER: self.fills}

    def __len__(self) -> int:
        return len(self._owners) - 1

    def __contains__(self, owner_id: OwnerId) -> bool:
        return owner_id in self._owners

    def connect(self, owner_id: OwnerId, client: Instance) -> None:
        if owner_id in self._owners:
            raise Conflict(f"owner {owner_id} is connected already")
        if len(self) >= MAX_OWNERS:
            raise OutOfSpace(f"{MAX_OWNERS} connections are open; close some")
        self._owners[owner_id] = Owner(owner_id, client)

    def get(self, owner_id: OwnerId) -> Owner:
        owner = self._owners.get(owner_id)
        if owner is None:
            raise InvalidRequest(f"owner {owner_id} is not connected")
        return owner

    def pop(self, owner_id: OwnerId) -> Owner:
        owner = self.get(owner_id)
        del self._owners[owner_id]
        return owner

    def of_client(self, client: Instance) -> list[Owner]:
        return [owner for owner in self._owners.values() if owner.client == client]
