"""LookupBlocks: this node's DRAM, then its disk, then other nodes, then the answer.

Sources only reserve fills; the lookup that follows them counts those like what lies in DRAM. So the
answer is made in one step, and pins what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ... import wire
from ...errors import StoreError
from ...keys import BlockKey
from ...layout import Shard
from ..answers import Deferred, Respond
from ..peer import Peer
from ..sources import BlockSource, BlocksWanted
from . import checks, floors

SOURCE_SECONDS = 1.0
"""For all sources together, unless the client says less."""
GRACE_SECONDS = 1.0
"""A source that does not keep its deadline costs the client's own, not for ever."""


def lookup(peer: Peer, message: wire.LookupBlocks) -> wire.BlocksReply | Deferred:
    checks.seconds("pin_s", message.pin_s)
    checks.seconds("wait_s", message.wait_s)
    checks.seconds("timeout_s", message.timeout_s)
    floors.check(peer, message)
    if message.local_only and peer.sources.changes is not None and peer.sources.is_member():
        peer.sources.changes.check_settled()
    keys = checks.block_keys(message.keys)
    asked = _Lookup(peer, message, keys, checks.shards(message.coverage, len(keys)))
    if asked.is_complete():
        return asked.find()
    return Deferred(asked.seconds, asked.start, wire.BlocksReply([], [], b""))


def _source_seconds(message: wire.LookupBlocks) -> float:
    return min(SOURCE_SECONDS, SOURCE_SECONDS if message.timeout_s is None else message.timeout_s)


class _Lookup:
    """One lookup. It ends when it has answered, or when `_cancel` was called."""

    def __init__(
        self,
        peer: Peer,
        message: wire.LookupBlocks,
        keys: Sequence[BlockKey],
        coverage: Sequence[Shard],
    ) -> None:
        self._peer = peer
        self._message = message
        self._keys = keys
        self._coverage = coverage
        sources = peer.sources
        self._sources = sources.local_blocks() if message.local_only else sources.blocks()
        self._left: Iterator[BlockSource] = iter(self._sources)
        self._wanted = BlocksWanted(
            message.namespace, keys, coverage, peer.clock() + _source_seconds(message)
        )
        self._wait_until = peer.clock() + message.wait_s
        self._unwatch: Callable[[], None] | None = None
        self._ended = False

    @property
    def seconds(self) -> float:
        """How long the answer may take."""
        asking = _source_seconds(self._message) + GRACE_SECONDS if self._sources else 0.0
        return max(self._message.wait_s, asking)

    def is_complete(self) -> bool:
        """Nobody need be asked, and there is nothing to wait for."""
        if not self._sources and not self._message.wait_s:
            return True
        message = self._message
        return self._peer.store.covers(
            message.namespace, self._keys, self._coverage, local_only=message.local_only
        )

    def find(self) -> wire.BlocksReply:
        message = self._message
        found = self._peer.store.lookup_blocks(
            self._peer.owner,
            message.namespace,
            self._keys,
            self._coverage,
            pin_s=message.pin_s,
            pending=message.pending,
            now=self._peer.clock(),
            local_only=message.local_only,
            held=message.held,
        )
        if self._peer.tiering is not None:
            self._peer.tiering.touch(
                b"k" + key + found.shards[entry.shard]
                for key, block in zip(self._keys, found.blocks, strict=False)
                for entry in block
            )
        return wire.BlocksReply(*found)

    def start(self, respond: Respond) -> Callable[[], None]:
        self._respond = respond
        peer, namespace = self._peer, self._message.namespace
        peer.store.touch_blocks(namespace, self._keys, self._coverage, peer.clock())
        self._ask_next()
        return self._cancel

    def _ask_next(self) -> None:
        """Runs again when a source has done what it can."""
        if self._ended:
            return
        source = next(self._left, None)
        if source is None or self.is_complete():
            self._look()
        else:
            source.prepare(self._wanted, self._ask_next)

    def _look(self) -> None:
        """Answers, or waits for the first block."""
        if self._ended:
            return
        try:
            reply = self.find()
            if not reply.blocks and self._peer.clock() < self._wait_until:
                self._watch()
                return
        except StoreError as error:
            self._answer(wire.Failure(error.code, str(error)))
        else:
            self._answer(reply)

    def _watch(self) -> None:
        if self._unwatch is None:
            self._unwatch = self._peer.store.watch_block(self._keys[0], self._look)

    def _answer(self, reply: wire.Reply) -> None:
        self._cancel()
        self._respond(reply)

    def _cancel(self) -> None:
        self._ended = True
        if self._unwatch is not None:
            self._unwatch()
