"""Answers that wait until the disk holds nothing of what was removed: no crash brings it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ... import wire
from ...errors import StoreTimeout, StoreUnavailable
from ...keys import EntryId
from ..answers import Deferred, Respond
from ..peer import Peer
from ..tiers import NOT_DURABLE

REMOVAL_SECONDS = 30.0
"""A disk that takes longer is broken: the client hears that it is not sure."""
R = TypeVar("R", bound=wire.Reply)


def outcome(reply: wire.Reply, *, durable: bool) -> wire.Reply:
    """What a removal is answered with once the disk is done with it."""
    unsure = StoreUnavailable(NOT_DURABLE)
    return reply if durable else wire.Failure(unsure.code, str(unsure))


class Removal:
    """One removal under way, and the reply it is worth once it is durable. The removal goes on
    whoever still waits for it."""

    def __init__(self, reply: wire.Reply) -> None:
        self._reply = reply
        self._outcome: wire.Reply | None = None
        self._respond: Respond | None = None

    def ended(self, durable: bool) -> None:
        self._outcome = outcome(self._reply, durable=durable)
        if self._respond is not None:
            self._respond(self._outcome)

    def answer(self) -> Deferred:
        late = StoreTimeout(f"the disk did not take the removal within {REMOVAL_SECONDS:g} s")
        return Deferred(REMOVAL_SECONDS, self._start, wire.Failure(late.code, str(late)))

    def _start(self, respond: Respond) -> Callable[[], None]:
        if self._outcome is not None:
            respond(self._outcome)
        else:
            self._respond = respond
        return self._forget

    def _forget(self) -> None:
        self._respond = None


def once_dropped(peer: Peer, entries: Sequence[bytes], reply: R) -> R | Deferred:
    """`reply`, once no later start can find any of these entries on disk; at once where it could
    not."""
    if peer.tiering is None:
        return reply
    on_disk = peer.tiering.may_return([EntryId(entry) for entry in entries])
    if not on_disk:
        return reply
    removal = Removal(reply)
    peer.tiering.drop(on_disk, removal.ended)
    return removal.answer()
