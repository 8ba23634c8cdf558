"""What goes where and when, and what becomes of it: every decision, without rails or a clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Protocol

import pytest

from moontide.transfer import TcpTransport
from moontide.transfer.batches import DONE, Batch, Batches, Limits
from moontide.transfer.engine import (
    ANYWHERE,
    BreakerLimits,
    EngineLimits,
    Location,
    Rail,
    RailName,
)
from moontide.transfer.engine.dispatcher import Dispatcher, Todo
from moontide.transfer.engine.parcels import Parcel, Terms, parcels_of
from moontide.transfer.engine.paths import Attempt
from moontide.transfer.types import (
    Instance,
    Opcode,
    Priority,
    SegmentAddress,
    SliceState,
    SliceStatus,
    TransferRequest,
)

MIB = 1 << 20
MEMORY = memoryview(bytearray(64 * MIB))  # nobody touches it
LEFT, RIGHT, SLOW = RailName("left"), RailName("right"), RailName("slow")
RANKS = {ANYWHERE: [[LEFT, RIGHT], [SLOW]], Location("cuda:1"): [[RIGHT], [LEFT, SLOW]]}
LIMITS = EngineLimits(
    path_bytes=8 * MIB,
    path_slices=16,
    parcel_bytes=4 * MIB,
    parcel_slices=8,
    breaker=BreakerLimits(failures=2, first_pause_seconds=1.0, silent_seconds=0.5),
)
LOST = SliceStatus(SliceState.FAILED, "unavailable: the connection was lost")
UNREACHABLE = SliceStatus(SliceState.FAILED, "unreachable: connection refused")
REFUSED = SliceStatus(SliceState.FAILED, "out_of_range: bytes 1..2")
LATE = SliceStatus(SliceState.FAILED, "deadline")
CANCELLED = SliceStatus(SliceState.CANCELLED)


class Bench:
    """A dispatcher with rails that never carry anything: the test says how attempts end."""

    def __init__(self, stack: ExitStack, rails: Sequence[RailName], peers: Sequence[str]) -> None:
        idle = TcpTransport(b"token", Instance.new("here"))
        self.batches = Batches(Limits(max_bytes=1 << 40))
        stack.callback(idle.close)
        stack.callback(self.batches.release)
        self.dispatcher = Dispatcher(
            [Rail(name, "tcp", idle, idle) for name in (LEFT, RIGHT, SLOW)],
            RANKS,
            LIMITS,
            random.Random(3),
        )
        for peer in peers:
            self.dispatcher.add_peer(peer, rails)
        self.started: list[Attempt] = []
        self.settled: list[tuple[Parcel, list[SliceStatus]]] = []
        self.now = 0.0

    def put(
        self,
        *sizes: int,
        opcode: Opcode = Opcode.READ,
        priority: Priority = Priority.NORMAL,
        location: Location = ANYWHERE,
        peer: str = "peer",
    ) -> Batch:
        requests = [
            TransferRequest(opcode, MEMORY[:size], SegmentAddress(peer, 0), 0) for size in sizes
        ]
        batch = self.batches.open(requests, 100.0, priority=priority)
        terms = Terms(location, self.now)
        parcels = parcels_of(self.batches, batch, terms, LIMITS)
        self.take(self.dispatcher.put(parcels, self.now))
        return batch

    def take(self, todo: Todo) -> Todo:
        self.started += todo.start
        for each in todo.settle:
            self.settled.append((each.parcel, list(each.statuses)))
            indices = [each.parcel.indices[position] for position in each.positions]
            self.batches.settle_all(each.parcel.batch, indices, each.statuses)
        self.dispatcher.check_integrity()
        return todo

    def end(self, attempt: Attempt, *statuses: SliceStatus) -> Todo:
        """The same for every slice, when one is given."""
        count = len(attempt.parcel.indices)
        self.started.remove(attempt)
        ends = list(statuses) * count if len(statuses) == 1 else statuses
        return self.take(self.dispatcher.ended(attempt, ends, self.now))

    def rails(self) -> list[RailName]:
        return [attempt.path.rail.name for attempt in self.started]

    def statuses(self) -> list[SliceStatus]:
        return [status for _, statuses in self.settled for status in statuses]


class MakeBench(Protocol):
    def __call__(self, *rails: RailName, peers: Sequence[str] = ("peer",)) -> Bench: ...


@pytest.fixture
def bench_of() -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(*rails: RailName, peers: Sequence[str] = ("peer",)) -> Bench:
            return Bench(stack, rails, peers)

        yield make


def test_small_slices_travel_together_and_large_ones_are_cut(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    batch = bench.put(1000, 9 * MIB, 2000, 3000)
    sizes = [attempt.parcel.num_bytes for attempt in bench.started]
    assert sizes == [4 * MIB, 4 * MIB]  # the path is full
    while bench.started:
        bench.end(bench.started[0], DONE)
    assert batch.statuses == [DONE] * 4
    assert [parcel.indices for parcel, _ in bench.settled] == [[1], [1], [1], [0, 2, 3]]


def test_what_is_given_to_one_path_is_bounded_by_bytes_and_slices(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    bench.put(*[100] * 40)
    assert sum(len(attempt.parcel.indices) for attempt in bench.started) == 16
    bench.end(bench.started[0], DONE)
    assert sum(len(attempt.parcel.indices) for attempt in bench.started) == 16


def test_a_path_known_to_be_slow_is_given_less_at_once(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    bench.put(4 * MIB)
    bench.now = 0.2
    bench.end(bench.started[0], DONE)
    bench.put(*[MIB // 2] * 16)
    sizes = [attempt.parcel.num_bytes for attempt in bench.started]
    assert sizes == [4 * MIB]  # one goes in any case
    bench.put(*[1000] * 3)
    assert len(bench.started) == 1


def test_a_slow_peer_holds_up_nobody_else(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, peers=("slow", "quick"))
    bench.put(64 * MIB, peer="slow")
    bench.started.clear()
    bench.put(4 * MIB, peer="quick")
    assert [attempt.parcel.instance for attempt in bench.started] == ["quick"]


def test_the_urgent_overtake_what_waits_but_not_what_is_under_way(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    bench.put(32 * MIB, priority=Priority.BACKGROUND)
    urgent = bench.put(4 * MIB, priority=Priority.URGENT)
    assert len(bench.started) == 2
    bench.end(bench.started[0], DONE)
    assert bench.started[-1].parcel.batch is urgent


def test_what_would_fit_waits_behind_what_came_before_it(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    for size in (4 * MIB, 3 * MIB):
        bench.put(size)
    waiting = [bench.put(4 * MIB), bench.put(100)]
    assert len(bench.started) == 2
    bench.end(bench.started[0], DONE)
    assert [attempt.parcel.batch for attempt in bench.started[1:]] == waiting


def test_large_slices_are_striped_over_rails_of_equal_rank_only(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT, SLOW)
    bench.put(64 * MIB)
    assert sorted(bench.rails()) == [LEFT, LEFT, RIGHT, RIGHT]


def test_memory_of_each_location_takes_its_own_rails_first(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT, SLOW)
    bench.put(64 * MIB, location=Location("cuda:1"))
    assert bench.rails() == [RIGHT, RIGHT]
    bench.put(4 * MIB)
    assert bench.rails() == [RIGHT, RIGHT, LEFT]


def test_the_faster_of_equal_rails_takes_more(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    bench.put(*[40 * MIB] * 10)
    seconds = {LEFT: 0.01, RIGHT: 0.02}  # a parcel, one after another on each
    over_at = dict.fromkeys(seconds, 0.0)
    carried = dict.fromkeys(seconds, 0)
    while bench.started:
        rail = min(set(bench.rails()), key=lambda rail: over_at[rail] + seconds[rail])
        over_at[rail] = bench.now = max(bench.now, over_at[rail] + seconds[rail])
        carried[rail] += 1
        bench.end(bench.started[bench.rails().index(rail)], DONE)
    assert carried[LEFT] + carried[RIGHT] == 100
    assert 1.5 * carried[RIGHT] < carried[LEFT] < 3 * carried[RIGHT]


def test_a_far_slower_rail_is_not_waited_for(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    bench.put(4 * MIB, 4 * MIB)
    for rail, bench.now in ((LEFT, 0.01), (RIGHT, 1.0)):
        bench.end(bench.started[bench.rails().index(rail)], DONE)
    bench.put(*[4 * MIB] * 10)
    assert set(bench.rails()) == {LEFT}


def test_r10_what_a_path_failed_goes_over_another_and_is_done_once(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    batch = bench.put(100, 200, 300)
    [first] = bench.started
    bench.end(first, DONE, LOST, DONE)
    assert [s is DONE for s in bench.statuses()] == [True, True]
    [second] = bench.started
    assert second.path is not first.path
    assert second.parcel.indices == [1]
    bench.end(second, DONE)
    assert batch.statuses == [DONE] * 3


def test_what_failed_on_every_rail_fails_with_the_last_reason(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT, SLOW)
    bench.put(100)
    rails = []
    while bench.started:
        rails += bench.rails()
        bench.end(bench.started[0], LOST)
    assert sorted(rails) == [LEFT, RIGHT, SLOW]
    assert rails[-1] == SLOW
    assert bench.statuses() == [LOST]


@pytest.mark.parametrize("status", [REFUSED, LATE])
def test_what_the_peer_answered_or_the_deadline_ended_is_not_tried_again(
    status: SliceStatus, bench_of: MakeBench
) -> None:
    bench = bench_of(LEFT, RIGHT)
    bench.put(100)
    bench.end(bench.started[0], status)
    assert bench.started == []
    assert bench.statuses() == [status]


def test_a_write_that_may_have_arrived_is_not_written_again(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    bench.put(100, opcode=Opcode.WRITE)
    bench.end(bench.started[0], LOST)
    assert bench.statuses() == [LOST]
    bench.put(100, opcode=Opcode.WRITE)
    bench.end(bench.started[0], UNREACHABLE)
    [again] = bench.started
    bench.end(again, DONE)
    assert bench.statuses() == [LOST, DONE]


def test_r10_what_is_ended_goes_nowhere_again(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    batch = bench.put(32 * MIB)
    assert len(bench.started) == 4
    bench.batches.end(batch, CANCELLED)
    todo = bench.take(bench.dispatcher.withdraw(batch, CANCELLED, bench.now))
    assert set(todo.cancel) == set(bench.started)
    assert len(bench.settled) == 4  # what waited
    for attempt in list(bench.started):
        bench.end(attempt, LOST)
    assert bench.started == []
    assert batch.pending == 0


def break_path(bench: Bench) -> None:
    for _ in range(LIMITS.breaker.failures):
        bench.put(100)
        bench.end(bench.started[0], LOST)


def test_r52_a_peer_whose_paths_are_broken_fails_at_once_and_is_probed(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    break_path(bench)
    assert not bench.dispatcher.is_reachable("peer")
    bench.put(100)
    assert bench.started == []
    assert bench.statuses()[-1].code == "unavailable"
    probe_at = bench.dispatcher.next_due()
    assert probe_at is not None
    assert bench.dispatcher.due(probe_at - 0.01).probe == []
    [path] = bench.dispatcher.due(probe_at).probe
    assert bench.dispatcher.next_due() is None
    bench.take(bench.dispatcher.probed(path, LOST, probe_at))
    assert not bench.dispatcher.is_reachable("peer")
    [path] = bench.dispatcher.due(probe_at + 10).probe
    bench.take(bench.dispatcher.probed(path, REFUSED, probe_at + 10))  # it answers: it lives
    assert bench.dispatcher.is_reachable("peer")
    bench.put(100)
    assert len(bench.started) == 1


def test_r52_refusals_never_open_a_breaker(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    for _ in range(10):
        bench.put(100)
        bench.end(bench.started[0], REFUSED)
    assert bench.dispatcher.is_reachable("peer")


@pytest.mark.parametrize("status", [LATE, CANCELLED])
def test_r52_a_peer_that_says_nothing_for_long_counts_as_failing(
    status: SliceStatus, bench_of: MakeBench
) -> None:
    bench = bench_of(LEFT)
    for _ in range(LIMITS.breaker.failures):
        bench.put(100)
        bench.now += LIMITS.breaker.silent_seconds
        bench.end(bench.started[0], status)
    assert not bench.dispatcher.is_reachable("peer")


def test_a_hasty_asker_says_nothing_about_a_peer(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    for _ in range(10):
        bench.put(100)
        bench.now += LIMITS.breaker.silent_seconds / 2
        bench.end(bench.started[0], LATE)
    assert bench.dispatcher.is_reachable("peer")


def test_a_peer_that_answers_others_is_not_silent(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT)
    for _ in range(10):
        for size in (MIB, MIB, 100):
            bench.put(size)
        bench.now += 1
        bench.end(bench.started[2], DONE)
        for _ in range(LIMITS.breaker.failures):
            bench.end(bench.started[0], LATE)
    assert bench.dispatcher.is_reachable("peer")


def test_a_rail_that_works_again_is_used_again(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, SLOW)
    for _ in range(LIMITS.breaker.failures):
        bench.put(100)
        bench.end(bench.started[0], LOST)
        bench.end(bench.started[0], DONE)
    bench.put(100)
    assert bench.rails() == [SLOW]
    bench.end(bench.started[0], DONE)
    [path] = bench.dispatcher.due(100.0).probe
    bench.take(bench.dispatcher.probed(path, DONE, 100.0))
    bench.put(100)
    assert bench.rails() == [LEFT]


def test_what_waits_for_a_path_that_breaks_goes_over_another(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, SLOW)
    bench.put(*[4 * MIB] * 6)
    assert bench.rails() == [LEFT, LEFT]
    while LEFT in bench.rails():
        bench.end(bench.started[bench.rails().index(LEFT)], LOST)
    while bench.started:
        assert set(bench.rails()) == {SLOW}
        bench.end(bench.started[0], DONE)
    assert bench.statuses() == [DONE] * 6


def test_a_dropped_peer_is_tried_no_more_and_its_successor_begins_anew(bench_of: MakeBench) -> None:
    bench = bench_of(LEFT, RIGHT)
    bench.put(64 * MIB)
    assert len(bench.started) == 4
    bench.take(bench.dispatcher.drop_peer("peer"))
    assert {status.code for status in bench.statuses()} == {"no_route"}
    bench.take(bench.dispatcher.add_peer("peer", [LEFT, RIGHT]))
    old = list(bench.started)
    for attempt in old:
        bench.end(attempt, LOST)
    assert bench.started == []
    assert bench.dispatcher.is_reachable("peer")
    bench.put(100, peer="nobody")
    assert bench.statuses()[-1].code == "no_route"


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_every_slice_ends_once_and_the_accounts_are_right(
    seed: int, bench_of: MakeBench
) -> None:
    rng = random.Random(seed)
    bench = bench_of(LEFT, RIGHT, SLOW, peers=("a", "b"))
    ends = [DONE, DONE, DONE, LOST, UNREACHABLE, REFUSED, LATE, CANCELLED]
    batches = []
    for _ in range(300):
        bench.now += rng.random() / 5
        match rng.randrange(8):
            case 0 | 1:
                sizes = [rng.choice((1, 5000, MIB, 9 * MIB)) for _ in range(rng.randint(1, 20))]
                batch = bench.put(
                    *sizes,
                    opcode=rng.choice(list(Opcode)),
                    priority=rng.choice(list(Priority)),
                    location=rng.choice(list(RANKS)),
                    peer=rng.choice("ab"),
                )
                batches.append(batch)
            case 2 if batches:
                batch = rng.choice(batches)
                if bench.batches.end(batch, CANCELLED):
                    bench.take(bench.dispatcher.withdraw(batch, CANCELLED, bench.now))
            case 3:
                for path in bench.take(bench.dispatcher.due(bench.now)).probe:
                    status = rng.choice((DONE, LOST))
                    bench.take(bench.dispatcher.probed(path, status, bench.now))
            case 4 if rng.random() < 0.1:
                bench.take(bench.dispatcher.add_peer("b", [LEFT, RIGHT, SLOW]))
            case _ if bench.started:
                attempt = rng.choice(bench.started)
                bench.end(attempt, *[rng.choice(ends) for _ in attempt.parcel.indices])
    while bench.started:
        bench.end(bench.started[0], DONE)
    assert all(batch.pending == 0 for batch in batches)
    counters = bench.batches.counters()
    total = sum(len(batch.statuses) for batch in batches)
    assert counters.slices_done + counters.slices_failed == total
