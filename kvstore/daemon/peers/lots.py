"""What another store is asked to take a copy of in one go: decisions, without any I/O.

Blocks go in chains, so that the store that takes them knows which follows which: a lot that begins
in the middle of a chain names the block before it again (`lead`), which went with an earlier lot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...keys import BlockKey, EntryId, block_key_of, is_block, shard_of
from ...layout import Shard

MAX_LOT = 64
"""Blocks, or string entries."""


class Item(NamedTuple):
    """One entry that lies here. `parent`: key of the block before it, b"" where none is known."""

    entry: EntryId
    namespace: bytes  # digest; b"" of string entries
    num_bytes: int
    parent: bytes = b""


@dataclass(frozen=True, slots=True)
class Lot:
    """String entries (`namespace` b""), or blocks of one namespace with the same shards."""

    namespace: bytes
    items: tuple[Item, ...]
    keys: tuple[BlockKey, ...] = ()  # of blocks, the lead among them
    shards: tuple[Shard, ...] = ()

    @property
    def entries(self) -> list[EntryId]:
        return [item.entry for item in self.items]

    @property
    def num_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)


def plan_lots(items: Iterable[Item]) -> list[Lot]:
    """Each item in one lot, in the order given as far as chains allow; of chains the parents
    first."""
    strings: list[Item] = []
    blocks: dict[bytes, dict[bytes, list[Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if is_block(item.entry):
            blocks[item.namespace][block_key_of(item.entry)].append(item)
        else:
            strings.append(item)
    lots = [
        Lot(b"", tuple(strings[start : start + MAX_LOT]))
        for start in range(0, len(strings), MAX_LOT)
    ]
    for namespace, by_key in blocks.items():
        lots += [_lot_of(namespace, by_key, run) for run in _runs(by_key)]
    return lots


def _lot_of(namespace: bytes, by_key: Mapping[bytes, Sequence[Item]], run: Sequence[bytes]) -> Lot:
    shards = _shards(by_key[run[0]])
    parent = by_key[run[0]][0].parent
    has_lead = parent in by_key and _shards(by_key[parent]) == shards
    keys = [parent, *run] if has_lead else run
    return Lot(
        namespace,
        tuple(item for key in run for item in by_key[key]),
        tuple(BlockKey(key) for key in keys),
        tuple(Shard.unpack(shard) for shard in shards),
    )


def _runs(by_key: Mapping[bytes, Sequence[Item]]) -> Iterator[list[bytes]]:
    """Stretches of chains without a branch, parents first."""
    children: dict[bytes, list[bytes]] = defaultdict(list)
    starts: list[bytes] = []
    for key, items in by_key.items():
        (children[items[0].parent] if items[0].parent in by_key else starts).append(key)
    starts.reverse()
    while starts:
        run = [starts.pop()]
        while (after := children[run[-1]]) and len(run) < MAX_LOT:
            if _shards(by_key[after[0]]) != _shards(by_key[run[0]]):
                break
            starts += after[1:]
            run.append(after[0])
        starts += after
        yield run


def _shards(items: Sequence[Item]) -> list[bytes]:
    return sorted(shard_of(item.entry) for item in items)
