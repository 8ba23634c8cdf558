"""Hand-offs: every block of a request reserved here at once, then filled from the store where the
request is being prefilled, while it is."""

from __future__ import annotations

import time

from ...errors import StoreUnavailable
from ...keys import Namespace
from ...store import BlocksFound, Store
from ...types import Tier
from ..sources import HandOff
from .filling import FillTools, PeerFill
from .plan import FillPlan, Piece
from .remote import GrowingSource, RemoteBlocks
from .reserving import FillSpec, reserve_pieces
from .roster import Roster
from .tasks import TaskGroup

REQUEST_SECONDS = 60.0
"""How long a request-scoped block lives here once it is whole."""


class Fetching:
    """See `HandOffSource`."""

    def __init__(self, tools: FillTools, roster: Roster, tasks: TaskGroup) -> None:
        self._tools = tools
        self._roster = roster
        self._tasks = tasks

    def fetch(self, request: HandOff) -> BlocksFound:
        neighbour = self._roster.find(request.source)
        if neighbour is None:
            raise StoreUnavailable(
                f"no member of the cluster is store instance {request.source[:200]}: it has left "
                "or was restarted"
            )
        if not neighbour.link.is_up or not self._tasks.has_room:
            raise StoreUnavailable(
                f"store {neighbour.record.id} cannot be fetched from: {neighbour.link.detail}"
            )
        namespace = self._tools.store.namespace(request.namespace)
        pieces = _reserve(self._tools.store, namespace, request)
        if pieces:
            blocks = RemoteBlocks(neighbour.link, namespace, request.coverage)
            source = GrowingSource(blocks, self._tools.store)
            deadline = time.monotonic() + request.timeout_s
            fill = PeerFill(self._tools, neighbour.link, FillPlan(pieces), source, deadline)
            self._tasks.start(fill.run())
        return self._tools.store.lookup_blocks(
            request.owner,
            request.namespace,
            request.keys,
            request.coverage,
            request.pin_s,
            pending=False,
            now=time.monotonic(),
        )


def _reserve(store: Store, namespace: Namespace, request: HandOff) -> list[Piece]:
    """Places for every block that is not here, up to the first without room."""
    missing = set(store.missing(request.namespace, request.keys, request.coverage))
    border = len(request.keys) - request.num_request_scoped
    pieces: list[Piece] = []
    for positions, lifetime in (
        ([index for index in range(border) if index in missing], None),
        (
            [index for index in range(border, len(request.keys)) if index in missing],
            REQUEST_SECONDS,
        ),
    ):
        if not positions:
            continue
        keys = [request.keys[index] for index in positions]
        spec = FillSpec(
            number=request.namespace,
            namespace=namespace,
            keys=keys,
            parents=[
                request.keys[index - 1] if index > 0 and lifetime is None else b""
                for index in positions
            ],
            shards=request.coverage,
            tier=Tier.DRAM,
            request_scoped_s=lifetime,
        )
        reserved, has_room = reserve_pieces(store, spec)
        pieces += reserved
        if not has_room:
            break
    return pieces
