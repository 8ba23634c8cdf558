"""Hand-offs: every block of a request reserved here at once, then filled from the store where the
request is being prefilled, while it is."""

from __future__ import annotations

import time

from moontide.transfer.types import Priority

from ...errors import StoreUnavailable
from ...keys import Namespace
from ...store import BlocksFound, Store
from ...types import Tier
from ..sources import HandOff
from .filling import FillTools, PeerFill
from .link import PeerLink
from .news import GrowingSource
from .plan import FillPlan, Piece
from .remote import RemoteBlocks
from .reserving import FillSpec, reserve_pieces
from .roster import Roster
from .tasks import TaskGroup

REQUEST_SECONDS = 60.0
"""How long a request-scoped block lives here once it is whole."""


class HandOffs:
    """See `HandOffSource`."""

    def __init__(self, tools: FillTools, roster: Roster, tasks: TaskGroup) -> None:
        self._tools = tools
        self._roster = roster
        self._tasks = tasks

    def fetch(self, request: HandOff) -> BlocksFound:
        store, link = self._tools.store, self._link(request.source)
        namespace = store.namespace(request.namespace)
        pieces = _reserve(store, namespace, link.record.id, request)
        if pieces:
            floor = self._tools.floor_of(namespace.digest)
            blocks = RemoteBlocks(link, namespace, request.coverage, floor=floor)
            source = GrowingSource(blocks, store)
            deadline = time.monotonic() + request.timeout_s
            plan, priority = FillPlan(pieces), Priority.URGENT
            fill = PeerFill(self._tools, link, plan, source, deadline, priority=priority)
            self._tasks.start(fill.run())
        return store.lookup_blocks(
            request.owner,
            request.namespace,
            request.keys,
            request.coverage,
            pin_s=request.pin_s,
            pending=False,
            now=time.monotonic(),
        )

    def _link(self, instance: str) -> PeerLink:
        """To the source, which can be asked now."""
        neighbour = self._roster.find(instance)
        if neighbour is None:
            raise StoreUnavailable(
                f"no member of the cluster is store instance {instance[:200]}: it has left or was "
                "restarted"
            )
        if not neighbour.is_readable:
            raise StoreUnavailable(
                f"store {neighbour.record.id} cannot be fetched from: {neighbour.detail}"
            )
        self._tasks.check_room()
        return neighbour.link


def _reserve(store: Store, namespace: Namespace, peer: str, request: HandOff) -> list[Piece]:
    """Places for every block that is not here, up to the first without room."""
    missing = store.missing(request.namespace, request.keys, request.coverage)
    border = len(request.keys) - request.num_request_scoped
    pieces: list[Piece] = []
    for positions, lifetime in (
        ([index for index in missing if index < border], None),
        ([index for index in missing if index >= border], REQUEST_SECONDS),
    ):
        if not positions:
            continue
        spec = FillSpec(
            number=request.namespace,
            namespace=namespace,
            keys=[request.keys[index] for index in positions],
            parents=[_parent(request, index) for index in positions],
            shards=request.coverage,
            tier=Tier.DRAM,
            peer=peer,
            request_scoped_s=lifetime,
        )
        reserved, has_room = reserve_pieces(store, spec)
        pieces += reserved
        if not has_room:
            break
    return pieces


def _parent(request: HandOff, index: int) -> bytes:
    """The key of the block before it; none for the first and for request-scoped ones."""
    border = len(request.keys) - request.num_request_scoped
    return request.keys[index - 1] if 0 < index < border else b""
