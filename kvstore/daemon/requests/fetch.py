"""FetchBlocks: every block of a hand-off, reserved here and filled from where it is prefilled."""

from __future__ import annotations

from collections.abc import Callable

from ... import wire
from ...errors import InvalidRequest, StoreError, StoreTimeout, StoreUnavailable
from ...keys import EntryId
from ..answers import Deferred, Respond
from ..peer import Peer
from ..settings import PEERS_NEED
from ..sources import HandOff
from . import checks

LEAST_SECONDS = 0.001
MAX_SOURCE_CHARS = 512


def fetch(peer: Peer, message: wire.FetchBlocks) -> wire.BlocksReply | Deferred:
    checks.seconds("pin_s", message.pin_s, least=LEAST_SECONDS)
    checks.seconds("timeout_s", message.timeout_s, least=LEAST_SECONDS)
    keys = checks.block_keys(message.keys)
    if not 0 <= message.num_request_scoped <= len(keys):
        raise InvalidRequest(
            f"num_request_scoped is {message.num_request_scoped}; there are {len(keys)} keys"
        )
    if len(message.source) > MAX_SOURCE_CHARS:
        raise InvalidRequest(
            f"source has {len(message.source)} characters; an instance at most {MAX_SOURCE_CHARS}"
        )
    request = HandOff(
        owner=peer.owner,
        namespace=message.namespace,
        keys=keys,
        coverage=checks.shards(message.coverage, len(keys)),
        source=message.source,
        pin_s=message.pin_s,
        timeout_s=message.timeout_s,
        num_request_scoped=message.num_request_scoped,
    )
    if message.source == str(peer.store.instance):
        late = StoreTimeout(
            f"not all of {len(keys)} blocks were being written within {message.timeout_s:g} s"
        )
        return Deferred(
            message.timeout_s,
            _Arrival(peer, request).start,
            wire.Failure(late.code, str(late)),
        )
    if peer.sources.hand_offs is None:
        raise StoreUnavailable(f"this store has no peers to fetch from: {PEERS_NEED}")
    if peer.sources.changes is not None:
        peer.sources.changes.check_writable([EntryId(b"k" + key) for key in keys])
    return wire.BlocksReply(*peer.sources.hand_offs.fetch(request))


class _Arrival:
    """A hand-off within this store: nothing moves; it waits until every block has its place."""

    def __init__(self, peer: Peer, request: HandOff) -> None:
        self._peer = peer
        self._request = request
        self._unwatch: Callable[[], None] | None = None
        self._ended = False

    def start(self, respond: Respond) -> Callable[[], None]:
        self._respond = respond
        self._look()
        return self._cancel

    def _look(self) -> None:
        if self._ended:
            return
        self._stop_watching()
        try:
            num_here = len(self._find(None).blocks)
            if num_here == len(self._request.keys):
                self._answer(self._find(self._request.pin_s))
            else:
                missing = self._request.keys[num_here]
                self._unwatch = self._peer.store.watch_block(missing, self._look)
        except StoreError as error:
            self._answer(wire.Failure(error.code, str(error)))

    def _find(self, pin_s: float | None) -> wire.BlocksReply:
        request = self._request
        found = self._peer.store.lookup_blocks(
            request.owner,
            request.namespace,
            request.keys,
            request.coverage,
            pin_s=pin_s,
            pending=True,
            now=self._peer.clock(),
        )
        return wire.BlocksReply(*found)

    def _answer(self, reply: wire.Reply) -> None:
        self._cancel()
        self._respond(reply)

    def _cancel(self) -> None:
        self._ended = True
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
