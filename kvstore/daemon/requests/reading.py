"""Requests that read entries, whichever key space they are in.

String entries that DRAM lacks and a source holds are brought here first; then the answer is made in
one step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import cast

from ... import wire
from ...errors import InvalidRequest, StoreError, StoreTimeout
from ...keys import EntryId, is_block
from ...store import Store
from ...types import Extent, Located
from ..answers import Answer, Deferred, Outgoing, Respond
from ..peer import Peer
from ..sources import EntriesWanted, EntrySource
from . import checks, floors
from .lookups import GRACE_SECONDS, SOURCE_SECONDS

MAX_READ_BYTES = 16 << 20
"""Most bytes one Read copies (one extent may always be read)."""
LEAST_NOTED_LATER = 8
"""Entries. Where both processes share a core, to go on after a reply costs two changes of them."""
_HERE = b"\1"
_NOTHING = EntryId(b"s")
"""No string key is empty."""


def lookup(peer: Peer, message: wire.Lookup) -> Answer:
    checks.seconds("pin_s", message.pin_s)
    floors.check_strings(peer, message.floor)
    entries = checks.entry_ids(message.entries)
    if 1 < message.replicas <= wire.MAX_REPLICAS and peer.sources.changes is not None:
        strings = [entry for entry in entries if not is_block(entry)]
        peer.sources.changes.want(strings, message.replicas)
    entries = _current(peer, entries)

    def look(beyond: int) -> wire.LookupReply:
        now = peer.clock()
        if message.replicas:  # whoever asks waits for copies, and uses none
            return wire.LookupReply([*peer.store.peek(entries, now)], beyond=beyond)
        found, ticket = peer.store.lookup(peer.owner, entries, message.pin_s, now)
        if not message.local_only:
            return wire.LookupReply(list(found), ticket, beyond=beyond)
        lifetimes, soft_pins = peer.store.lifetimes(entries, now), peer.store.soft_pinned(entries)
        return wire.LookupReply(list(found), ticket, lifetimes, beyond, soft_pins)

    sources = peer.sources
    asked = sources.local_entries() if message.local_only else sources.entries()
    return _once_here(peer, entries, look, asked)


def locate(peer: Peer, message: wire.Locate) -> Answer:
    """What the eviction policy has to hear of many waits until the reply has left."""
    entries = _current(peer, checks.entry_ids(message.entries))

    def look(beyond: int) -> wire.LocateReply | Outgoing:
        now = peer.clock()
        slots, generations = peer.store.locate(entries, now)
        places = array("I", slots).tobytes(), array("I", generations).tobytes()
        reply = wire.LocateReply(*places, beyond)
        note = partial(peer.store.note_lookup, slots, generations, now)
        if len(slots) >= LEAST_NOTED_LATER:
            return Outgoing(reply, release=note)
        note()
        return reply

    return _once_here(peer, entries, look, peer.sources.entries())


def get(peer: Peer, message: wire.Get) -> Answer:
    """Values leave straight from the pool, pinned by a view of this connection until then."""
    entries = _current(peer, checks.entry_ids(message.entries))
    return _once_here(peer, entries, lambda _: _send(peer, entries), peer.sources.entries())


def _send(peer: Peer, entries: Sequence[EntryId]) -> Outgoing:
    store = peer.store
    found, ticket = store.lookup_to_send(peer.owner, entries, peer.clock())
    release = partial(store.unpin, peer.owner, ticket) if ticket else None
    num_bytes = sum(each.length for each in found if each)
    if num_bytes > wire.MAX_PAYLOAD_BYTES:
        if release:
            release()
        raise InvalidRequest(
            f"the values have {num_bytes} bytes, one reply {wire.MAX_PAYLOAD_BYTES}: ask for fewer"
        )
    return Outgoing(
        wire.GetReply(
            [each.length if each else -1 for each in found],
            [each.checksum if each else 0 for each in found],
        ),
        tuple(_values(store, [each for each in found if each])),
        release=release,
    )


def _values(store: Store, found: Sequence[Located]) -> Iterator[memoryview]:
    """One buffer for values that lie one behind another without gaps, as those of one put often
    do: each costs as much as 4 KiB."""
    segment = begin = end = 0
    for each in found:
        if each.segment != segment or each.offset != end:
            if end > begin:
                yield store.segment_view(segment)[begin:end]
            segment, begin = each.segment, each.offset
            end = begin
        end += each.length
    if end > begin:
        yield store.segment_view(segment)[begin:end]


def read(peer: Peer, message: wire.Read) -> Outgoing:
    """Copies the extents out: what was pinned for this reader may end while they are sent."""
    checks.reservations(message.slots, message.generations)
    checks.same_length(slots=message.slots, extents=message.extents)
    look = _complete_extent if message.is_pinned else _current_extent
    extents = [
        look(peer, slot, generation, index)
        for slot, generation, index in zip(
            message.slots, message.generations, message.extents, strict=True
        )
    ]
    complete = [extent.length for extent in extents if extent]
    num_bytes = sum(complete)
    if num_bytes > MAX_READ_BYTES and len(complete) > 1:
        raise InvalidRequest(
            f"the extents have more than {MAX_READ_BYTES} bytes: read fewer at once"
        )
    peer.copies.take(num_bytes)
    values = [
        memoryview(bytes(peer.store.buffer(slot, generation)[extent.offset :][: extent.length]))
        for slot, generation, extent in zip(
            message.slots, message.generations, extents, strict=True
        )
        if extent
    ]
    return Outgoing(
        wire.GetReply(
            [extent.length if extent else -1 for extent in extents],
            [extent.checksum if extent else 0 for extent in extents],
        ),
        tuple(values),
        release=partial(peer.copies.give_back, num_bytes),
    )


def _complete_extent(peer: Peer, slot: int, generation: int, index: int) -> Extent | None:
    try:
        extents = peer.store.extents(slot, generation)
    except InvalidRequest:  # that generation is gone: a miss
        return None
    return extents[index] if 0 <= index < len(extents) else None


def _current_extent(peer: Peer, slot: int, generation: int, index: int) -> Extent | None:
    """As `_complete_extent`, of what a look-up would find."""
    if not peer.store.is_current(slot, generation):
        return None
    return _complete_extent(peer, slot, generation, index)


def exists(peer: Peer, message: wire.Exists) -> wire.ExistsReply | Deferred:
    """What another store holds by its events is asked of it: they lag behind."""
    checks.num_entries(message.entries)
    floors.check_strings(peer, message.floor)
    entries = _current(peer, message.entries)
    absent = peer.store.absent(entries, peer.clock())
    if not absent:
        return wire.ExistsReply(_HERE * len(entries))
    unknown = checks.entry_ids([entry for entry in absent if entry != _NOTHING])  # the rest is here
    for source in peer.sources.local_entries():
        unknown = list(compress(unknown, map(not_, source.holds(unknown))))

    def all_but(found: Collection[EntryId]) -> wire.ExistsReply:
        nowhere = {_NOTHING, *unknown}.difference(found)
        return wire.ExistsReply(bytes([entry not in nowhere for entry in entries]))

    peers = None if message.local_only else peer.sources.peer_entries
    held = list(compress(unknown, peers.holds(unknown))) if peers is not None else []
    if peers is None or not held:
        return all_but(())

    def start(respond: Respond) -> Callable[[], None]:
        peers.find(held, lambda found: respond(all_but(found)))
        return lambda: None  # it ends soon, whoever still waits for it

    return Deferred(SOURCE_SECONDS + GRACE_SECONDS, start, all_but(()))


def _current(peer: Peer, entries: list[bytes] | list[EntryId]) -> list[EntryId]:
    """What may be read of them. While this node's lease may have ended, no string entry: others may
    have changed them without us."""
    if peer.sources.is_member():
        return cast("list[EntryId]", entries)
    return [EntryId(entry) if is_block(entry) else _NOTHING for entry in entries]


# -- bringing ---------------------------------------------------------------------


def _once_here(
    peer: Peer,
    entries: Sequence[EntryId],
    answer: Callable[[int], wire.Reply | Outgoing],
    sources: Sequence[EntrySource],
) -> Answer:
    """`answer` gets how many lie on disk that could not be brought."""
    if peer.tiering is not None:
        peer.tiering.touch(entries)
    if not sources or not peer.store.absent(entries, peer.clock()):
        return answer(0)
    bringing = _Bringing(peer, entries, sources, answer)
    if not bringing.is_needed():
        return answer(0)
    late = StoreTimeout(f"{len(entries)} entries did not come within {SOURCE_SECONDS:g} s")
    return Deferred(
        SOURCE_SECONDS + GRACE_SECONDS, bringing.start, wire.Failure(late.code, str(late))
    )


class _Bringing:
    """Asks the sources one after another for what is not here, then answers."""

    def __init__(
        self,
        peer: Peer,
        entries: Sequence[EntryId],
        sources: Sequence[EntrySource],
        answer: Callable[[int], wire.Reply | Outgoing],
    ) -> None:
        self._peer = peer
        self._entries = [entry for entry in entries if not is_block(entry)]
        self._sources = sources
        self._left: Iterator[EntrySource] = iter(sources)
        self._answer = answer
        self._deadline = peer.clock() + SOURCE_SECONDS
        self._ended = False

    def is_needed(self) -> bool:
        """Some source holds what is not here."""
        missing = self._missing()
        return bool(missing) and any(any(source.holds(missing)) for source in self._sources)

    def start(self, respond: Respond) -> Callable[[], None]:
        self._respond = respond
        self._ask_next()
        return self._cancel

    def _missing(self) -> list[EntryId]:
        return self._peer.store.absent(self._entries, self._peer.clock())

    def _ask_next(self) -> None:
        if self._ended:
            return
        source, missing = next(self._left, None), self._missing()
        if source is None or not missing:
            self._finish()
        else:
            source.bring(EntriesWanted(missing, self._deadline), self._ask_next)

    def _finish(self) -> None:
        self._ended = True
        try:
            reply = self._answer(self._num_beyond())
        except StoreError as error:
            reply = wire.Failure(error.code, str(error))
        self._respond(reply)

    def _num_beyond(self) -> int:
        missing = self._missing()
        on_disk = self._peer.sources.local_entries() if missing else []
        return sum([sum(source.holds(missing)) for source in on_disk])

    def _cancel(self) -> None:
        self._ended = True
