"""Blocks that belong to one request: found by their own random key only, and for a while."""

from __future__ import annotations

import secrets

import pytest

from moontide.kvstore import (
    BlockKey,
    BlockStore,
    InvalidRequest,
    JobStatus,
    ReserveStatus,
    StoreClient,
    StoreHandle,
)

from ...waiting import wait_until
from .helpers import (
    SECONDS,
    TOKENS,
    block_bytes,
    buffers_for,
    check_prompt,
    layers_of,
    result_of,
    write_prompt,
)


def new_key() -> BlockKey:
    return BlockKey(secrets.token_bytes(16))


def store_block(kv: BlockStore, key: BlockKey, ttl_s: float) -> StoreHandle:
    handle = kv.begin_request_store(key, ttl_s=ttl_s, deadline_s=SECONDS)
    for layer in range(kv.num_layers):
        source = [block_bytes(key, layer, kv.layer_bytes(layer))]
        kv.submit_store(handle, layer, source, deadline_s=SECONDS)
    assert result_of(kv, kv.commit(handle)).status is JobStatus.DONE
    return handle


def count(kv: BlockStore, key: BlockKey) -> int:
    make = kv.jobs.lookup([key], None, pending=False)
    hit = kv.jobs.desk.run(make, kv.limit(SECONDS)).hit
    assert hit is not None
    return len(hit.blocks)


def test_it_is_found_by_its_key_until_its_time_is_over(kv: BlockStore) -> None:
    write_prompt(kv, TOKENS)
    key = new_key()
    handle = store_block(kv, key, ttl_s=1.0)
    assert (handle.statuses, handle.num_blocks) == ((ReserveStatus.RESERVED,), 1)
    make = kv.jobs.lookup([key], SECONDS, pending=False)
    hit = kv.jobs.desk.run(make, kv.limit(SECONDS)).hit
    assert hit is not None
    assert hit.blocks == (key,)
    buffers = buffers_for(kv, range(4), 1)
    assert kv.load(hit.ticket, range(4), buffers).status is JobStatus.DONE
    assert buffers == layers_of(kv, [key])
    kv.release(hit.ticket)
    wait_until(lambda: not count(kv, key))
    assert check_prompt(kv, TOKENS) == 96  # which it has nothing to do with


def test_an_aborted_one_is_gone(client: StoreClient, kv: BlockStore) -> None:
    key = new_key()
    handle = kv.begin_request_store(key, ttl_s=60.0, deadline_s=SECONDS)
    kv.abort(handle)
    assert result_of(kv, handle.job).status is JobStatus.CANCELLED
    assert not count(kv, key)
    wait_until(lambda: client.stats()["in_flight"] == 0)


def test_wrong_arguments_name_what_is_wrong(kv: BlockStore) -> None:
    short, source = BlockKey(b"short"), "node-x/1/" + "00" * 16
    with pytest.raises(InvalidRequest, match=r"key of 5 bytes; give 16"):
        kv.begin_request_store(short, ttl_s=1.0, deadline_s=SECONDS)
    with pytest.raises(InvalidRequest, match=r"ttl_s of 0"):
        kv.begin_request_store(new_key(), ttl_s=0, deadline_s=SECONDS)
    with pytest.raises(InvalidRequest, match=r"key of 5 bytes"):
        kv.submit_fetch(TOKENS, source=source, request_block=short, deadline_s=SECONDS)
    with pytest.raises(InvalidRequest, match=r"a fetch of 0 blocks; one takes 1\.\.16384"):
        kv.submit_fetch(range(3), source=source, deadline_s=SECONDS)
    with pytest.raises(InvalidRequest, match=r"first_block is 7; .* 6 full blocks"):
        kv.submit_fetch(TOKENS, source=source, first_block=7, deadline_s=SECONDS)
