"""Store admission: which blocks a client's offer stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moontide.kvstore.keys import BlockKey
from moontide.kvstore.store import AdmissionRule, AdmissionRules
from moontide.kvstore.store.admission import SeenEntries
from moontide.kvstore.types import ReserveStatus

from .conftest import LAYOUT, TP2, Node, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()
RESERVED, EXISTS, FULL = ReserveStatus.RESERVED, ReserveStatus.EXISTS, ReserveStatus.FULL


@pytest.fixture
def namespace(node: Node) -> int:
    return node.store.open_namespace(namespace_named("w"))


def rules(kind: str, num_blocks: int = 0) -> AdmissionRules:
    return AdmissionRules(AdmissionRule(kind, num_blocks))  # type: ignore[arg-type]  # a test's text


def statuses(node: Node, owner: int, namespace: int, keys: list[BlockKey]) -> list[ReserveStatus]:
    return [result.status for result in node.put_blocks(owner, namespace, keys, [WHOLE])]


def test_second_use_stores_what_was_offered_before(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(4)
    node.store.set_admission(rules("second-use"))
    assert statuses(node, owner, namespace, keys[:2]) == [FULL, FULL]
    assert node.store.used_bytes == 0
    assert statuses(node, owner, namespace, keys) == [RESERVED, RESERVED, FULL, FULL]
    assert statuses(node, owner, namespace, keys) == [EXISTS, EXISTS, RESERVED, RESERVED]
    stats = node.store.stats(node.now)
    assert (stats.not_admitted, stats.refused_puts) == (4, 0)


def test_what_is_not_admitted_says_so(node: Node, namespace: int, chain: Chain) -> None:
    node.store.set_admission(rules("second-use"))
    (result,) = node.put_blocks(node.connect(), namespace, chain(1), [WHOLE])
    assert result.reason.startswith("not admitted")


def test_each_rank_s_shard_is_offered_on_its_own(node: Node, namespace: int, chain: Chain) -> None:
    first, second, keys = node.connect(), node.connect(), chain(1)
    node.store.set_admission(rules("second-use"))
    for owner, shard in ((first, TP2[0]), (second, TP2[1])):
        (result,) = node.put_blocks(owner, namespace, keys, [shard])
        assert result.status is FULL
    for owner, shard in ((first, TP2[0]), (second, TP2[1])):
        (result,) = node.put_blocks(owner, namespace, keys, [shard])
        assert result.status is RESERVED


def test_depth_stores_the_beginning_of_a_chain_at_once(
    node: Node, namespace: int, chain: Chain
) -> None:
    owner, keys = node.connect(), chain(5)
    node.store.set_admission(rules("depth", 3))
    assert statuses(node, owner, namespace, keys[:2]) == [RESERVED] * 2
    results = node.put_blocks(owner, namespace, keys[2:], [WHOLE], parent=keys[1])
    assert [result.status for result in results] == [RESERVED, FULL, FULL]
    results = node.put_blocks(owner, namespace, keys[3:], [WHOLE], parent=keys[2])
    assert [result.status for result in results] == [RESERVED, RESERVED]


def test_a_namespace_may_have_a_rule_of_its_own(node: Node, chain: Chain) -> None:
    owner = node.connect()
    plain = node.store.open_namespace(namespace_named("plain"))
    picky = node.store.open_namespace(namespace_named("picky"))
    digest = namespace_named("picky").digest.hex()
    node.store.set_admission(
        AdmissionRules(AdmissionRule("all"), {digest: AdmissionRule("second-use")})
    )
    assert statuses(node, owner, plain, chain(1, "a")) == [RESERVED]
    assert statuses(node, owner, picky, chain(1, "b")) == [FULL]


def test_offers_are_remembered_up_to_a_bound(chain: Chain) -> None:
    seen = SeenEntries(1000)
    keys = chain(5000)
    assert sum(seen.add(key) for key in keys[:1000]) < 10  # 1 %
    assert all(seen.add(key) for key in keys[:1000])
    false_hits = sum(seen.add(key) for key in keys[1000:])
    assert false_hits < 80  # 2 %
    assert sum(seen.add(key) for key in keys[:1000]) < 20  # forgotten by now
