"""Answers that wait for other stores: until they agree to a change, until they hold replicas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from ... import wire
from ...errors import StoreError, StoreTimeout
from ...keys import EntryId
from ...types import PutStatus
from ..answers import Deferred, Outgoing, Respond
from ..sources import EntryChanges
from .durable import REMOVAL_SECONDS

AGREE_SECONDS = 5.0
SPREAD_SECONDS = 10.0

Stored = wire.PutReply | wire.RunReply
"""Answers to puts."""
Act = Callable[[AbstractSet[EntryId]], wire.Reply | Deferred]
"""Makes a change here; gets which entries went at other stores."""


def once_agreed(
    changes: EntryChanges,
    entries: Sequence[EntryId],
    act: Act,
    *,
    namespaces: Collection[bytes] = (),
) -> Deferred:
    """The answer of `act`, which runs while no other store has one of the entries. `namespaces`:
    see `EntryChanges.change`."""
    late = StoreTimeout(f"{len(entries)} entries were not changed within {AGREE_SECONDS:g} s")
    return Deferred(
        AGREE_SECONDS + REMOVAL_SECONDS,
        _Change(changes, entries, act, namespaces).start,
        wire.Failure(late.code, str(late)),
    )


class _Change:
    def __init__(
        self,
        changes: EntryChanges,
        entries: Sequence[EntryId],
        act: Act,
        namespaces: Collection[bytes],
    ) -> None:
        self._namespaces = namespaces
        self._changes = changes
        self._entries = entries
        self._act = act
        self._ended = False
        self._cancel_act: Callable[[], None] | None = None

    def start(self, respond: Respond) -> Callable[[], None]:
        self._respond = respond
        self._changes.change(self._entries, self._apply, self._fail, namespaces=self._namespaces)
        return self._cancel

    def _apply(self, dropped: AbstractSet[EntryId]) -> None:
        if self._ended:  # the client is gone, and with it what it had written
            return
        try:
            answer = self._act(dropped)
        except StoreError as error:
            self._fail(error)
            return
        if isinstance(answer, Deferred):
            self._cancel_act = answer.start(self._respond)
        else:
            self._respond(answer)

    def _fail(self, error: StoreError) -> None:
        if not self._ended:
            self._respond(wire.Failure(error.code, str(error)))

    def _cancel(self) -> None:
        self._ended = True
        if self._cancel_act is not None:
            self._cancel_act()


def once_spread(
    changes: EntryChanges,
    entries: Sequence[EntryId],
    replicas: int,
    answer: Stored | Deferred,
) -> Deferred:
    """`answer` to a put of these entries, when as many stores as can be had hold what it stored."""
    late = StoreTimeout(f"stored; {replicas} replicas were not made within {SPREAD_SECONDS:g} s")

    def start(respond: Respond) -> Callable[[], None]:
        def stored(reply: wire.Reply | Outgoing) -> None:
            if not isinstance(reply, Stored):
                respond(reply)
                return
            here = [
                entry
                for entry, status in zip(entries, _statuses(reply), strict=True)
                if status in (PutStatus.STORED, PutStatus.EXISTS)
            ]
            if here:
                changes.spread(
                    here, replicas, lambda count: respond(_count(reply, count, replicas))
                )
            else:
                respond(reply)

        if isinstance(answer, Deferred):
            return answer.start(stored)
        stored(answer)
        return _nothing

    return Deferred(REMOVAL_SECONDS + SPREAD_SECONDS, start, wire.Failure(late.code, str(late)))


def _statuses(reply: Stored) -> Iterable[int]:
    if isinstance(reply, wire.RunReply):
        return reply.statuses
    return [status for status, _ in reply.results]


def _count(reply: Stored, count: int, replicas: int) -> Stored:
    if count >= replicas:
        return reply
    reason = f"stored, but only {count} of {replicas} replicas could be made; put it again later"
    if isinstance(reply, wire.RunReply):
        return wire.RunReply(
            reply.statuses.replace(bytes([PutStatus.STORED]), bytes([PutStatus.FULL])),
            bytes(len(reply.slots)),
            bytes(len(reply.generations)),
            reason,
        )
    return wire.PutReply(
        [
            (int(PutStatus.FULL), reason) if status == PutStatus.STORED else (status, told)
            for status, told in reply.results
        ]
    )


def _nothing() -> None:
    """Replicas that are being made are made, whoever still waits for them."""
