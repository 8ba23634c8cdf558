"""Peers that die, stop or restart while they are read from: a bounded wait, right bytes or none,
and nothing left behind."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.kvstore import BlockStore, JobResult, JobStatus, StoreClient, wire
from moontide.kvstore.membership import FileMembership, StoreRecord
from moontide.transfer.types import Instance

from ....store_process import StartStore, StoreProcess, start_nodes
from ....waiting import wait_until, within
from ...client.helpers import (
    NAMESPACE,
    SECONDS,
    buffers_for,
    check_prompt,
    client_of,
    layers_of,
    result_of,
    write_prompt,
)
from .conftest import is_idle

TOKENS = range(1600)  # a hundred blocks
MORE = range(10_000, 11_600)


@pytest.fixture
def pair(store_daemon: StartStore, tmp_path: Path) -> list[StoreProcess]:
    return start_nodes(store_daemon, tmp_path, 2, "--dram", "32MiB", "--segment", "4MiB")


@contextlib.contextmanager
def reader_of(node: StoreProcess) -> Iterator[tuple[StoreClient, BlockStore]]:
    with client_of(node) as client, client.kv(NAMESPACE) as kv:
        yield client, kv
        wait_until(lambda: is_idle(client.stats()), 15.0)


def write_at(node: StoreProcess, *prompts: range) -> None:
    with client_of(node) as client, client.kv(NAMESPACE) as kv:
        for tokens in prompts:
            write_prompt(kv, tokens)


def is_known(kv: BlockStore, tokens: range) -> bool:
    """Whether the peers' events tell of its first block: only that one is brought."""
    return kv.lookup(tokens[:17]).num_tokens == 16


def test_r10_a_peer_killed_while_it_is_read_costs_what_it_had_not_sent(
    pair: list[StoreProcess],
) -> None:
    write_at(pair[0], TOKENS)
    with reader_of(pair[1]) as (_, kv):
        wait_until(lambda: is_known(kv, TOKENS))
        found = result_of(kv, kv.submit_lookup(TOKENS, pin_s=SECONDS, deadline_s=SECONDS))
        pair[0].kill()
        assert found.hit is not None
        check_load(kv, found)
        check_prompt(kv, TOKENS)  # what is left is right


def check_load(kv: BlockStore, found: JobResult) -> None:
    """Every layer of every block has its bytes, or the load says which blocks failed."""
    assert found.hit is not None
    buffers = buffers_for(kv, range(4), len(found.hit.blocks))
    load = kv.submit_load(found.hit.ticket, range(4), buffers, deadline_s=SECONDS)
    result = result_of(kv, load, 2 * SECONDS)
    expected = layers_of(kv, found.hit.blocks)
    failed = set(result.failed_blocks)
    assert bool(failed) == (result.status is not JobStatus.DONE)
    for block in range(len(found.hit.blocks)):
        if block not in failed:
            assert [layer[block] for layer in buffers] == [layer[block] for layer in expected]
    kv.release(found.hit.ticket)


def test_r52_r57_a_stopped_peer_costs_one_bounded_wait_and_comes_back(
    pair: list[StoreProcess],
) -> None:
    write_at(pair[0], TOKENS, MORE)
    with reader_of(pair[1]) as (client, kv):
        wait_until(lambda: is_known(kv, MORE))
        with pair[0].stopped():
            with within(2.0):
                kv.lookup(TOKENS)
            assert client.stats()["peers"]["up"] == []  # not asked again
            wait_until(lambda: client.stats()["peers"]["up"] == [])
            kv.lookup(TOKENS)  # warm
            with within(10 * 0.05):
                for _ in range(10):
                    kv.lookup(TOKENS)
        wait_until(lambda: client.stats()["peers"]["up"] == ["node-a"])
        wait_until(lambda: kv.lookup(MORE).num_tokens == len(MORE))
        assert check_prompt(kv, MORE) == len(MORE)


def test_r25_a_restarted_peer_is_asked_under_its_new_instance_only(
    pair: list[StoreProcess],
) -> None:
    write_at(pair[0], TOKENS)
    with reader_of(pair[1]) as (client, kv):
        wait_until(lambda: is_known(kv, TOKENS))
        pair[0].restart()
        write_at(pair[0], MORE)
        wait_until(lambda: kv.lookup(MORE).num_tokens == len(MORE))
        assert check_prompt(kv, MORE) == len(MORE)
        assert kv.lookup(TOKENS).num_tokens <= 16  # what the former life had is gone with it
        assert client.stats()["peers"]["corrupt_extents"] == 0


def test_a_source_killed_during_a_hand_off_ends_it(pair: list[StoreProcess]) -> None:
    with reader_of(pair[1]) as (client, kv), client_of(pair[0]) as source:
        wait_until(lambda: client.stats()["peers"]["up"] == ["node-a"])
        job = kv.submit_fetch(
            TOKENS, source=pair[0].instance, request_block=None, pin_s=SECONDS, deadline_s=SECONDS
        )
        found = result_of(kv, job)
        assert found.hit is not None
        writer = source.kv(NAMESPACE)
        handle = writer.begin_store(TOKENS, deadline_s=SECONDS)
        first = layers_of(writer, writer.keys(TOKENS))[0]
        stored = writer.submit_store(handle, 0, first, deadline_s=SECONDS)
        assert result_of(writer, stored).status is JobStatus.DONE
        buffers = buffers_for(kv, [0], len(found.hit.blocks))
        load = kv.submit_load(found.hit.ticket, [0], buffers, deadline_s=SECONDS)
        assert result_of(kv, load).status is JobStatus.DONE  # its first layer came
        assert buffers[0] == first[: len(found.hit.blocks)]
        pair[0].kill()
        buffers = buffers_for(kv, range(4), len(found.hit.blocks))
        load = kv.submit_load(found.hit.ticket, range(4), buffers, deadline_s=SECONDS)
        ended = result_of(kv, load)
        assert ended.status is not JobStatus.DONE
        assert len(ended.failed_blocks) == len(found.hit.blocks)
        kv.release(found.hit.ticket)


def test_what_a_peer_refuses_with_is_told_on_one_line_and_bounded(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    words = "no\nFORGED LINE " * 10_000
    refusal = wire.encode_frame(wire.Failure("busy", words), 0, version=1)
    cluster = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        address = "{}:{}".format(*listener.getsockname())
        record = StoreRecord(
            id="evil",
            instance=str(Instance("evil", 1, bytes(16))),
            admin_url=f"http://{address}",
            data_address=address,
            socket="",
            transfer_address=address,
        )
        node = store_daemon("--cluster", f"file:{cluster}")
        FileMembership(cluster).register(record, 600)
        for _ in range(3):
            connection, _ = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(refusal)
                while connection.recv(1 << 16):  # until it has read that and gone
                    pass
        log = node.log.read_text()
        assert "evil" in log
        assert len(log) < len(words)
        assert not any(line.startswith("FORGED") for line in log.splitlines())
