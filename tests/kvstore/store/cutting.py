"""What a client does with a run: reserve it, write values into it, say which entries they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from moontide.kvstore.keys import string_entry_id
from moontide.kvstore.store import Pieces, ReserveResult, RunOptions, RunResult
from moontide.kvstore.store.allocator import occupied_bytes
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer import checksum

from .conftest import Node

RUN_BYTES = 32 << 10
STORED, EXISTS, FULL = PutStatus.STORED, PutStatus.EXISTS, PutStatus.FULL
Piece = tuple[str, int, bytes]
"""Key, offset in the run, value."""


def open_run(node: Node, owner: int, num_bytes: int = RUN_BYTES) -> ReserveResult:
    run = node.store.reserve_run(owner, num_bytes, node.now)
    assert run.status is ReserveStatus.RESERVED, run.reason
    return run


def packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def cut(
    node: Node, owner: int, run: ReserveResult, pieces: Sequence[Piece], **options: Any
) -> RunResult:
    """Writes the values where they are to lie, and commits them."""
    for _, offset, value in pieces:
        node.write(owner, run, offset, value)
    return commit(node, owner, run, pieces, **options)


def commit(
    node: Node, owner: int, run: ReserveResult, pieces: Sequence[Piece], **options: Any
) -> RunResult:
    return node.store.commit_run(
        owner,
        run.slot,
        run.generation,
        Pieces(
            [string_entry_id(key) for key, _, _ in pieces],
            packed([offset for _, offset, _ in pieces]),
            packed([len(value) for _, _, value in pieces]),
            packed([checksum(value) for _, _, value in pieces]),
        ),
        RunOptions(**options),
        node.now,
    )


def row(names: Sequence[str], value: bytes, start: int = 0) -> list[Piece]:
    """Pieces of that value, side by side."""
    step = occupied_bytes(len(value))
    return [(name, start + index * step, value) for index, name in enumerate(names)]
