"""Any sequence of calls against a model as large as a dict (machine.py), and the same with runs
that clients cut entries from, reads that nobody asked for, floors and tenants' caps. No process and
no disk: 10^5 steps a minute."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, rule, run_state_machine_as_test

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.keys import EntryId
from moontide.kvstore.store import ReserveResult
from moontide.kvstore.store.types import Pieces, RunOptions
from moontide.kvstore.types import PutStatus, ReserveStatus
from moontide.transfer import checksum
from moontide.transfer.types import PAGE_BYTES, Instance, align_up

from .machine import (
    CHAINS,
    KEYS,
    RARELY,
    SEATS,
    SEGMENT,
    WHOLE,
    StoreMachine,
)

NUM_STRINGS = 30
RUN_SIZES = [PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES, SEGMENT]


class Run:
    """`front`: where the next entry may lie; -1: it has ended."""

    def __init__(self, owner: int, reserved: ReserveResult, num_bytes: int) -> None:
        self.owner = owner
        self.reserved = reserved
        self.num_bytes = align_up(num_bytes, PAGE_BYTES)
        self.front = 0


class FullStoreMachine(StoreMachine):
    runs: Bundle[Run] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.open_runs: list[Run] = []

    # -- runs -----------------------------------------------------------------------------

    @rule(target=runs, seat=SEATS, num_bytes=st.sampled_from(RUN_SIZES))
    def reserve_run(self, seat: int, num_bytes: int) -> Run | None:
        owner = self.owners[seat]
        reserved = self.store.reserve_run(owner, num_bytes, self.now)
        if reserved.status is not ReserveStatus.RESERVED:
            return None
        self.check_writable(owner, reserved)
        self.open_runs.append(Run(owner, reserved, num_bytes))
        return self.open_runs[-1]

    @rule(
        run=runs,
        first=st.integers(0, NUM_STRINGS - 1),
        sizes=st.lists(st.sampled_from([0, 1, 64, 65, 700, 4096, 5000]), min_size=1, max_size=20),
        skip=st.sampled_from([0, 0, 64, 4096]),
        mode=st.sampled_from(["keep", "replace", "error"]),
        ttl_s=st.sampled_from([None, None, 5.0]),
        soft=st.booleans(),
    )
    def cut(
        self,
        run: Run | None,
        first: int,
        sizes: list[int],
        skip: int,
        mode: str,
        ttl_s: float | None,
        soft: bool,
    ) -> None:
        if run is None:
            return
        entries = [b"s%d" % ((first + index) % NUM_STRINGS) for index in range(len(sizes))]
        offsets, stop = place(run.front + skip, sizes)
        values = [self.random.randbytes(size) for size in sizes]
        pieces = Pieces(
            entries, pack(offsets), pack(sizes), pack([checksum(value) for value in values])
        )
        options = RunOptions(mode, ttl_s, soft)  # type: ignore[arg-type]  # one of the names
        arguments = (run.reserved.slot, run.reserved.generation, pieces, options, self.now)
        if run.owner not in self.client_of:
            return
        if stop > run.num_bytes or run.front < 0:
            with pytest.raises(InvalidRequest):
                self.store.commit_run(run.owner, *arguments)
            return
        self.write(run, offsets, values)
        before = dict(zip(entries, self.store.exists(entries, self.now), strict=True))
        result = self.store.commit_run(run.owner, *arguments)
        for entry, value, status in zip(entries, values, result.statuses, strict=True):
            self.note_cut(EntryId(entry), value, PutStatus(status), mode, ttl_s, before)
            before[entry] |= status == PutStatus.STORED
        run.front = stop if stop < run.num_bytes else -1

    def write(self, run: Run, offsets: list[int], values: list[bytes]) -> None:
        """As its client does: into the segment it has mapped."""
        client = self.client_of[run.owner]
        descriptor = self.store.writable_descriptor(run.reserved.segment, client)
        with mmap.mmap(descriptor, SEGMENT) as memory:
            for offset, value in zip(offsets, values, strict=True):
                start = run.reserved.offset + offset
                memory[start : start + len(value)] = value

    def on_returned(self, client: Instance, segment: int) -> None:
        for run in self.open_runs:
            if self.client_of.get(run.owner) == client and run.reserved.segment == segment:
                run.front = -1

    def note_cut(
        self,
        entry: EntryId,
        value: bytes,
        status: PutStatus,
        mode: str,
        ttl_s: float | None,
        before: dict[bytes, bool],
    ) -> None:
        assert status is not PutStatus.FAILED
        if before[entry] and mode != "replace":
            assert status is PutStatus.EXISTS
        if status is PutStatus.STORED:
            self.values[entry] = value
            self.deadlines.pop(entry, None)
            if ttl_s is not None:
                self.deadlines[entry] = self.now + ttl_s

    @rule(run=runs)
    def end_run(self, run: Run | None) -> None:
        if run is not None and run.owner in self.client_of:
            self.store.abort(run.owner, [run.reserved.slot], [run.reserved.generation])
            run.front = -1

    # -- what came later --------------------------------------------------------------------

    @rule(seat=SEATS, entries=st.lists(KEYS, min_size=1, max_size=4))
    def read_without_asking(self, seat: int, entries: list[EntryId]) -> None:
        """What is known from an earlier lookup, and may be gone."""
        owner = self.owners[seat]
        found, _ = self.store.lookup(owner, entries, None, self.now)
        there = [located for located in found if located is not None]
        slots = [located.slot for located in there] * 2 + [1]
        generations = [located.generation for located in there]
        generations += [generation + 1 for generation in generations] + [0]
        self.store.note_use(owner, slots, generations, 100, self.now)

    @rule(rarely=RARELY)
    def raise_floor(self, rarely: bool) -> None:
        """R31: nothing of the namespace is found from this moment on."""
        if not rarely:
            return
        assert self.store.raise_floor(self.digest)
        for writing in self.block_writings:
            writing.below_floor = True
        for chain in CHAINS:
            found = self.store.lookup_blocks(
                self.owners[0],
                self.namespace,
                chain,
                WHOLE,
                pin_s=None,
                pending=False,
                now=self.now,
            )
            assert not found.blocks


def place(front: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets that are aligned as they must be, and where the last one ends."""
    offsets = []
    for size in sizes:
        front = align_up(front, PAGE_BYTES if size >= PAGE_BYTES else 64)
        offsets.append(front)
        front = align_up(front + max(size, 1), PAGE_BYTES if size >= PAGE_BYTES else 64)
    return offsets, front


def pack(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def run_machine(machine: type[StoreMachine], max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_sequence_of_calls_agrees_with_a_dict() -> None:
    run_machine(StoreMachine, 60, 60)


def test_r01_any_calls_of_a_store_with_runs_agree_with_a_dict() -> None:
    run_machine(FullStoreMachine, 40, 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_r01_a_hundred_thousand_calls_of_a_store_agree_with_a_dict() -> None:
    run_machine(FullStoreMachine, 1000, 120)
