"""Tenants: a cap takes a tenant's own coldest, a share keeps others' hands off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from moontide.kvstore.keys import BlockKey
from moontide.kvstore.store import TenantBytes, tenant_digest
from moontide.kvstore.types import ReserveStatus

from .conftest import LAYOUT, MakeNode, Node, namespace_named

Chain = Callable[..., list[BlockKey]]
(WHOLE,) = LAYOUT.whole()
BLOCK_BYTES = LAYOUT.entry_bytes(WHOLE, 4)
QUIET, LOUD = tenant_digest("quiet"), tenant_digest("loud")


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(dram_bytes=256 << 10, segment_bytes=64 << 10)


def of_tenant(node: Node, salt: str) -> int:
    return node.store.open_namespace(dataclasses.replace(namespace_named("w"), salt=salt))


def burst(node: Node, owner: int, namespace: int, keys: list[BlockKey]) -> list[ReserveStatus]:
    """Unrelated prompts of one block each, a tenth of a second apart."""
    found = []
    for key in keys:
        node.now += 0.1
        node.store.expire(node.now)
        (result,) = node.put_blocks(owner, namespace, [key], [WHOLE])
        found.append(result.status)
    return found


def held(node: Node) -> dict[str, int]:
    return {usage.tenant: usage.dram_bytes for usage in node.store.tenants()}


def test_a_tenant_over_its_cap_loses_its_own_coldest(node: Node, chain: Chain) -> None:
    owner = node.connect()
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    cap = 10 * BLOCK_BYTES
    node.store.limit_tenants(TenantBytes(None, {LOUD: cap}), TenantBytes())
    burst(node, owner, quiet, chain(3, "q"))
    keys = chain(60, "l")
    for count, _ in enumerate(keys):
        burst(node, owner, loud, keys[count : count + 1])
        assert held(node)[LOUD] <= cap
    assert node.prefix(owner, loud, keys[-1:]) == 1
    assert node.prefix(owner, loud, keys[:1]) == 0
    assert held(node)[QUIET] == 3 * BLOCK_BYTES


def test_another_tenant_s_burst_leaves_a_tenant_within_its_share_alone(
    node: Node, chain: Chain
) -> None:
    owner = node.connect()
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    kept = chain(20, "q")
    node.store.limit_tenants(TenantBytes(), TenantBytes(None, {QUIET: 20 * BLOCK_BYTES}))
    burst(node, owner, quiet, kept)
    count = 3 * node.store.settings.capacity_bytes // BLOCK_BYTES
    found = burst(node, owner, loud, chain(count, "l"))
    assert set(found) == {ReserveStatus.RESERVED}
    assert all(node.prefix(owner, quiet, [key]) for key in kept)


@pytest.mark.parametrize("end", ["clear", "raise_floor"])
def test_after_a_clear_a_tenant_s_share_is_its_own_from_the_first_block_on(
    node: Node, chain: Chain, end: str
) -> None:
    owner = node.connect()
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    node.store.limit_tenants(TenantBytes(), TenantBytes(None, {QUIET: 20 * BLOCK_BYTES}))
    burst(node, owner, quiet, chain(30, "o"))
    digest = dataclasses.replace(namespace_named("w"), salt="quiet").digest
    if end == "clear":
        node.store.clear(digest, strings_only=False)
    else:
        node.store.raise_floor(digest)
    kept = chain(20, "q")
    for key in kept:
        node.put_blocks(owner, quiet, [key], [WHOLE])
    for key in chain(2 * node.store.settings.capacity_bytes // BLOCK_BYTES, "l"):
        node.put_blocks(owner, loud, [key], [WHOLE])
    assert all(node.prefix(owner, quiet, [key]) for key in kept)


def test_without_a_share_the_burst_takes_them(node: Node, chain: Chain) -> None:
    owner = node.connect()
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    kept = chain(20, "q")
    burst(node, owner, quiet, kept)
    burst(node, owner, loud, chain(3 * node.store.settings.capacity_bytes // BLOCK_BYTES, "l"))
    assert not any(node.prefix(owner, quiet, [key]) for key in kept)


def test_a_tenant_that_pins_all_it_may_hold_is_refused_and_others_are_not(
    node: Node, chain: Chain
) -> None:
    owner = node.connect()
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    node.store.limit_tenants(TenantBytes(4 * BLOCK_BYTES), TenantBytes())
    keys = chain(4, "l")
    burst(node, owner, loud, keys)
    for key in keys:
        node.lookup_blocks(owner, loud, [key], [WHOLE], pin_s=0.0)
    refused, _ = node.put_blocks(owner, loud, chain(2, "m"), [WHOLE])
    assert node.store.stats(node.now).refused_puts == 2
    assert refused.status is ReserveStatus.FULL
    assert LOUD in refused.reason
    assert "loud" not in refused.reason
    assert burst(node, owner, quiet, chain(2, "q")) == [ReserveStatus.RESERVED] * 2


def test_what_a_tenant_has_already_takes_no_room_under_its_cap(node: Node, chain: Chain) -> None:
    owner, loud = node.connect(), of_tenant(node, "loud")
    node.store.limit_tenants(TenantBytes(10 * BLOCK_BYTES), TenantBytes())
    keys = chain(10, "l")
    node.put_blocks(owner, loud, keys, [WHOLE])
    for _ in range(3):
        again = node.put_blocks(owner, loud, keys, [WHOLE])
        assert {result.status for result in again} == {ReserveStatus.EXISTS}
        assert node.prefix(owner, loud, keys) == 10
    longer = node.put_blocks(owner, loud, chain(21, "l"), [WHOLE])
    statuses = [result.status for result in longer]
    assert statuses == [*[ReserveStatus.EXISTS] * 10, *[ReserveStatus.FULL] * 11]
    assert node.store.stats(node.now).refused_puts == 11
    assert node.prefix(owner, loud, keys) == 10


def test_what_was_cleared_and_is_pinned_is_counted_to_its_own_tenant(
    node: Node, chain: Chain
) -> None:
    """Its edition's number is given to nobody before."""
    owner, keys = node.connect(), chain(2)
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    for salt, namespace in (("quiet", quiet), ("loud", loud)):
        digest = dataclasses.replace(namespace_named("w"), salt=salt).digest
        node.store.clear(digest, strings_only=False)  # from now on by a number that may be reused
        node.put_blocks(owner, namespace, keys, [WHOLE])
        if salt == "quiet":
            found = node.lookup_blocks(owner, namespace, keys, [WHOLE], pin_s=0.0)
        node.store.clear(digest, strings_only=False)
        assert held(node) == {QUIET: 2 * BLOCK_BYTES, LOUD: 0}
    node.store.unpin(owner, found.ticket)
    assert held(node) == {QUIET: 0, LOUD: 0}


def test_r32_tenants_share_no_key_and_are_called_by_a_digest(node: Node, chain: Chain) -> None:
    owner, keys = node.connect(), chain(2)
    quiet, loud = of_tenant(node, "quiet"), of_tenant(node, "loud")
    node.put_blocks(owner, quiet, keys, [WHOLE])
    assert node.prefix(owner, loud, keys) == 0
    listed = node.store.tenants()
    assert {usage.tenant for usage in listed} == {QUIET, LOUD}
    assert "quiet" not in str(listed)
