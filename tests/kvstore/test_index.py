"""The prefix index against a model that is a set of tuples."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.events import EventKind, KvEvent, SnapshotBegin
from moontide.kvstore.index import Phase, PrefixIndex, StreamStatus
from moontide.kvstore.keys import BlockKey, kv_entry_id
from moontide.kvstore.layout import Group, KVLayout, Shard

LAYOUT = KVLayout((Group("full", 2, 4, 8, "float16"),))
WHOLE = LAYOUT.whole()[0]
LEFT, RIGHT = Shard(0, (0, 2), (0, 2)), Shard(0, (0, 2), (2, 4))
KEYS = [BlockKey(bytes([number]) * 16) for number in range(8)]
NAMESPACE, OTHER = "aa" * 32, "bb" * 32
ENGINE, DAEMON = "node/7/" + "e1" * 16, "node/8/" + "da" * 16


def entry(key: BlockKey, shard: Shard = WHOLE) -> str:
    return kv_entry_id(key, shard).hex()


def event(
    seq: int,
    keys: list[BlockKey],
    *,
    kind: EventKind = "stored",
    instance: str = DAEMON,
    tier: str = "dram",
    shard: Shard = WHOLE,
    namespace: str = NAMESPACE,
) -> KvEvent:
    return KvEvent(
        seq=seq,
        kind=kind,
        instance=instance,
        tier=tier,
        namespace=namespace,
        entries=tuple(entry(key, shard) for key in keys),
    )


def live_index(*, seq: int = 0, max_blocks: int = 1000) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks)
    index.begin("store", SnapshotBegin(source=DAEMON, seq=seq))
    assert index.live("store", seq) is StreamStatus.OK
    return index


def prefix(index: PrefixIndex, instance: str = DAEMON, keys: list[BlockKey] = KEYS) -> int:
    match = index.longest_prefix(NAMESPACE, keys, LAYOUT).get(instance)
    return match.num_blocks if match else 0


def test_snapshot_then_live_events_make_a_prefix() -> None:
    index = PrefixIndex()
    index.begin("store", SnapshotBegin(source=DAEMON, seq=40))
    assert index.apply("store", event(40, KEYS[:1])) is StreamStatus.OK
    assert index.apply("store", event(40, KEYS[1:2])) is StreamStatus.OK
    assert index.live("store", 40) is StreamStatus.OK
    assert index.apply("store", event(41, KEYS[2:3])) is StreamStatus.OK
    assert prefix(index) == 3
    assert index.streams()["store"].phase is Phase.LIVE


@pytest.mark.parametrize("seq", [41, 43, 100], ids=["repeated", "one missing", "far ahead"])
def test_r37_any_wrong_sequence_number_asks_for_a_resync_and_changes_nothing(seq: int) -> None:
    index = live_index(seq=40)
    assert index.apply("store", event(41, KEYS[:2])) is StreamStatus.OK
    assert index.apply("store", event(seq, KEYS[2:4])) is StreamStatus.RESYNC
    assert prefix(index) == 2
    assert index.streams()["store"].phase is Phase.BROKEN
    assert index.streams()["store"].resyncs == 1
    assert (
        index.apply("store", event(42, KEYS[2:4])) is StreamStatus.RESYNC
    )  # only a snapshot heals


def test_r37_swapped_events_are_noticed_and_a_snapshot_heals() -> None:
    index = live_index()
    assert index.apply("store", event(2, KEYS[1:2])) is StreamStatus.RESYNC
    index.begin("store", SnapshotBegin(source=DAEMON, seq=2))
    assert index.apply("store", event(2, KEYS[:2])) is StreamStatus.OK
    assert index.live("store", 2) is StreamStatus.OK
    assert prefix(index) == 2
    assert index.streams()["store"].resyncs == 1


def test_r37_a_hit_ends_at_the_first_hole() -> None:
    index = live_index()
    index.apply("store", event(1, [KEYS[0], KEYS[1], KEYS[3]]))
    assert prefix(index) == 2
    index.apply("store", event(2, KEYS[:1], kind="removed"))
    assert prefix(index) == 0


def test_events_within_a_snapshot_must_carry_its_number() -> None:
    index = PrefixIndex()
    index.begin("store", SnapshotBegin(source=DAEMON, seq=5))
    assert index.apply("store", event(6, KEYS[:1])) is StreamStatus.RESYNC


def test_a_snapshot_replaces_what_was_said_before() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:4]))
    index.begin("store", SnapshotBegin(source=DAEMON, seq=9))
    index.apply("store", event(9, KEYS[:1]))
    assert prefix(index) == 1
    assert index.num_blocks == 1


def test_r5_a_block_counts_only_when_its_shards_cover_the_layout() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:3], shard=LEFT))
    assert prefix(index) == 0
    index.apply("store", event(2, KEYS[:2], shard=RIGHT))
    assert prefix(index) == 2
    index.apply("store", event(3, KEYS[1:2], kind="removed", shard=LEFT))
    assert prefix(index) == 1


def test_shards_of_two_tiers_count_together() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:1], shard=LEFT))
    index.apply("store", event(2, KEYS[:1], shard=RIGHT, tier="nvme"))
    match = index.longest_prefix(NAMESPACE, KEYS, LAYOUT)[DAEMON]
    assert (match.num_blocks, match.by_tier) == (1, {"nvme": 1})


def test_an_entry_without_a_shard_is_the_whole_block() -> None:
    index = live_index()
    names = tuple((b"k" + key).hex() for key in KEYS[:2])
    index.apply("store", KvEvent(1, "stored", ENGINE, "hbm", NAMESPACE, names))
    assert prefix(index, ENGINE) == 2
    index.apply("store", KvEvent(2, "removed", ENGINE, "hbm", NAMESPACE, names[1:]))
    assert prefix(index, ENGINE) == 1


def test_blocks_count_for_the_warmest_tier() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:3], tier="nvme"))
    index.apply("store", event(2, KEYS[:1], tier="dram"))
    match = index.longest_prefix(NAMESPACE, KEYS, LAYOUT)[DAEMON]
    assert match.by_tier == {"dram": 1, "nvme": 2}


def test_instances_are_told_apart_and_cleared_alone() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:4]))
    index.apply("store", event(2, KEYS[:2], instance=ENGINE, tier="hbm"))
    assert (prefix(index, DAEMON), prefix(index, ENGINE)) == (4, 2)
    index.apply("store", event(3, [], kind="cleared", instance=ENGINE, tier="hbm"))
    assert (prefix(index, DAEMON), prefix(index, ENGINE)) == (4, 0)
    index.check_integrity()


def test_cleared_drops_one_namespace_or_a_whole_location() -> None:
    index = live_index()
    index.apply("store", event(1, KEYS[:2]))
    index.apply("store", event(2, KEYS[:2], namespace=OTHER))
    index.apply("store", event(3, [], kind="cleared", namespace=OTHER))
    assert prefix(index) == 2
    assert index.longest_prefix(OTHER, KEYS, LAYOUT) == {}
    index.apply("store", event(4, [], kind="cleared", namespace=""))
    assert prefix(index) == 0
    index.check_integrity()


def test_the_bound_holds_and_what_was_left_out_is_counted() -> None:
    index = live_index(max_blocks=3)
    index.apply("store", event(1, KEYS[:5]))
    assert prefix(index) == 3
    assert index.streams()["store"].skipped == 2
    index.apply("store", event(2, KEYS[4:5], kind="removed"))  # one that was left out
    index.apply("store", event(3, KEYS[2:3], kind="removed"))
    index.apply("store", event(4, KEYS[2:3]))
    assert prefix(index) == 3
    index.check_integrity()


@pytest.mark.parametrize("name", ["zz", "6b00", "6b" + "00" * 24], ids=["hex", "short", "one off"])
def test_malformed_entries_are_refused(name: str) -> None:
    index = live_index()
    with pytest.raises(InvalidRequest, match="event names entry"):
        index.apply("store", KvEvent(1, "stored", DAEMON, "dram", NAMESPACE, (name,)))
    index.check_integrity()


def test_string_entries_are_no_blocks() -> None:
    index = live_index()
    index.apply("store", KvEvent(1, "stored", DAEMON, "dram", "", (b"sname".hex(),)))
    assert index.num_blocks == 0


@dataclass(frozen=True)
class Held:
    stream: str
    namespace: str
    instance: str
    tier: str
    key: bytes
    shard: Shard


class IndexMachine(RuleBasedStateMachine):
    """Events, losses and snapshots in any order; the model is the set of what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_blocks=10_000)
        self.model: set[Held] = set()
        self.seq = {"a": 0, "b": 0}
        for stream in self.seq:
            self.index.begin(stream, SnapshotBegin(source=stream, seq=0))
            self.index.live(stream, 0)

    streams = st.sampled_from(["a", "b"])
    places = st.tuples(
        st.sampled_from([NAMESPACE, OTHER]),
        st.sampled_from([ENGINE, DAEMON]),
        st.sampled_from(["hbm", "dram"]),
    )
    shards = st.sampled_from([WHOLE, LEFT, RIGHT])
    some_keys = st.lists(st.sampled_from(KEYS[:4]), max_size=4)

    @rule(stream=streams, place=places, shard=shards, keys=some_keys, stored=st.booleans())
    def gains_or_loses(
        self,
        stream: str,
        place: tuple[str, str, str],
        shard: Shard,
        keys: list[BlockKey],
        stored: bool,
    ) -> None:
        self.seq[stream] += 1
        namespace, instance, tier = place
        message = event(
            self.seq[stream],
            keys,
            kind="stored" if stored else "removed",
            instance=instance,
            tier=tier,
            shard=shard,
            namespace=namespace,
        )
        assert self.index.apply(stream, message) is StreamStatus.OK
        held = {Held(stream, *place, key, shard) for key in keys}
        self.model = self.model | held if stored else self.model - held

    @rule(stream=streams, place=places, everywhere=st.booleans())
    def clears(self, stream: str, place: tuple[str, str, str], everywhere: bool) -> None:
        self.seq[stream] += 1
        namespace, instance, tier = place
        message = event(
            self.seq[stream],
            [],
            kind="cleared",
            instance=instance,
            tier=tier,
            namespace="" if everywhere else namespace,
        )
        assert self.index.apply(stream, message) is StreamStatus.OK
        self.model = {
            held
            for held in self.model
            if (held.stream, held.instance, held.tier) != (stream, instance, tier)
            or not (everywhere or held.namespace == namespace)
        }

    @rule(stream=streams, off=st.sampled_from([-3, 0, 2, 7]))
    def loses_an_event_and_resyncs(self, stream: str, off: int) -> None:
        wrong = event(self.seq[stream] + off, KEYS[:2])
        assert self.index.apply(stream, wrong) is StreamStatus.RESYNC
        self.index.begin(stream, SnapshotBegin(source=stream, seq=self.seq[stream]))
        for held in [held for held in self.model if held.stream == stream]:
            again = event(
                self.seq[stream],
                [BlockKey(held.key)],
                instance=held.instance,
                tier=held.tier,
                shard=held.shard,
                namespace=held.namespace,
            )
            assert self.index.apply(stream, again) is StreamStatus.OK
        assert self.index.live(stream, self.seq[stream]) is StreamStatus.OK

    @rule(stream=streams)
    def stream_ends_and_returns(self, stream: str) -> None:
        self.index.drop_stream(stream)
        self.model = {held for held in self.model if held.stream != stream}
        self.seq[stream] = 0
        self.index.begin(stream, SnapshotBegin(source=stream, seq=0))
        self.index.live(stream, 0)

    @invariant()
    def counts_add_up(self) -> None:
        self.index.check_integrity()
        blocks = {(h.stream, h.namespace, h.instance, h.tier, h.key) for h in self.model}
        assert self.index.num_blocks == len(blocks)

    @invariant()
    def prefixes_are_those_of_the_model(self) -> None:
        for namespace in (NAMESPACE, OTHER):
            found = self.index.longest_prefix(namespace, KEYS, LAYOUT)
            for instance in (ENGINE, DAEMON):
                expected = max(self._expected(s, namespace, instance) for s in self.seq)
                match = found.get(instance)
                assert (match.num_blocks if match else 0) == expected
                assert match is None or sum(match.by_tier.values()) == match.num_blocks

    def _expected(self, stream: str, namespace: str, instance: str) -> int:
        for number, key in enumerate(KEYS):
            shards = {
                held.shard
                for held in self.model
                if (held.stream, held.namespace, held.instance, held.key)
                == (stream, namespace, instance, key)
            }
            if not (WHOLE in shards or {LEFT, RIGHT} <= shards):
                return number
        return len(KEYS)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
