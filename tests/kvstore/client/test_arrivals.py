"""Values over the socket go straight to where they belong, and are got only when they are whole."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from moontide.kvstore import (
    InvalidRequest,
    StoreClient,
    StoreTimeout,
    StoreUnavailable,
    connect,
    wire,
)
from moontide.kvstore.client.arrivals import Arrivals
from moontide.kvstore.client.targets import AS_BYTES, IntoBuffers, Target
from moontide.transfer import CopyHelper

from ...store_process import StoreProcess
from .helpers import SECONDS, client_of
from .relay import Relay

T = TypeVar("T")
SIZES = [300 << 10, 0, 70 << 10, 1 << 20, 5]


@pytest.fixture
def values(daemon: StoreProcess) -> Iterator[dict[str, bytes]]:
    """In the store."""
    values = {f"k{index}": os.urandom(size) for index, size in enumerate(SIZES)}
    with client_of(daemon) as client:
        client.clear()
        client.put_many(list(values.items()))
        yield values


@pytest.fixture
def relay(daemon: StoreProcess) -> Iterator[Relay]:
    with Relay(daemon.listen or "") as relay:
        yield relay


@pytest.fixture
def client(daemon: StoreProcess, relay: Relay) -> Iterator[StoreClient]:
    with connect(relay.address, token=daemon.token, timeout_s=SECONDS) as client:
        yield client


def test_a_batch_is_one_request_however_its_values_come(
    daemon: StoreProcess, values: dict[str, bytes], relay: Relay, client: StoreClient
) -> None:
    answers: list[type[wire.Reply]] = []

    def note(reply: wire.Reply) -> wire.Reply:
        answers.append(type(reply))
        return reply

    relay.alter = note
    buffers = [bytearray(len(value) + 1) for value in values.values()]
    assert client.get_many_into(list(values), buffers) == SIZES
    assert answers.count(wire.GetReply) == 1
    assert wire.LookupReply not in answers
    assert [bytes(buffer[:-1]) for buffer in buffers] == list(values.values())
    assert [buffer[-1] for buffer in buffers] == [0] * len(SIZES)
    assert client.get_many(["absent", *values, "k0"]) == [None, *values.values(), values["k0"]]
    assert client.get_many_into(["absent", "k2"], [bytearray(1), buffers[0]]) == [None, SIZES[2]]


FORGED: dict[str, Callable[[wire.GetReply], wire.Reply]] = {
    "longer": lambda reply: wire.GetReply([each + 1 for each in reply.sizes], reply.checksums),
    "shorter": lambda reply: wire.GetReply([each // 2 for each in reply.sizes], reply.checksums),
    "more": lambda reply: wire.GetReply([*reply.sizes, 0], [*reply.checksums, 0]),
    "fewer": lambda reply: wire.GetReply(reply.sizes[:-1], reply.checksums[:-1]),
    "missed": lambda reply: wire.GetReply([-1] * len(reply.sizes), reply.checksums),
    "unlike": lambda reply: wire.GetReply(reply.sizes, []),
    "other": lambda reply: wire.Ok(),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_r16_an_answer_that_contradicts_itself_is_no_value(
    values: dict[str, bytes],
    relay: Relay,
    client: StoreClient,
    forge: Callable[[wire.GetReply], wire.Reply],
) -> None:
    relay.alter = lambda reply: forge(reply) if isinstance(reply, wire.GetReply) else reply
    for key in ("k2", "k4"):
        buffer = bytearray(2 * len(values[key]))
        with pytest.raises(StoreUnavailable, match="answered a Get of 1 entries"):
            client.get_into(key, buffer)
        with pytest.raises(StoreUnavailable, match="answered a Get of 1 entries"):
            client.get(key)
    relay.alter = lambda reply: reply
    assert client.get("k2") == values["k2"]


def test_r16_bytes_that_were_not_put_are_a_miss(
    values: dict[str, bytes], relay: Relay, client: StoreClient
) -> None:
    def forge(reply: wire.Reply) -> wire.Reply:
        if not isinstance(reply, wire.GetReply):
            return reply
        return wire.GetReply(reply.sizes, [reply.checksums[0] ^ 1, *reply.checksums[1:]])

    relay.alter = forge
    assert client.get("k0") is None
    assert client.get("k4") is None
    buffers = [bytearray(size) for size in SIZES]
    assert client.get_many_into(list(values), buffers) == [None, *SIZES[1:]]
    assert [bytes(each) for each in buffers[1:]] == list(values.values())[1:]


def test_a_buffer_that_is_too_small_costs_the_call_only(
    daemon: StoreProcess, values: dict[str, bytes]
) -> None:
    with client_of(daemon, "tcp") as client:
        greetings = client.stats()["requests"]["Hello"]
        for key in ("k3", "k4"):
            small = bytearray(len(values[key]) - 1)
            with pytest.raises(InvalidRequest, match="too small"):
                client.get_into(key, small)
            with pytest.raises(InvalidRequest, match="too small"):
                client.get_many_into(["k0", key], [bytearray(1 << 20), small])
            assert bytes(small) == bytes(len(small))
        assert client.get("k3") == values["k3"]
        assert client.stats()["requests"]["Hello"] == greetings


def test_a_buffer_that_was_too_small_is_let_go_of(
    daemon: StoreProcess, values: dict[str, bytes]
) -> None:
    small = bytearray(len(values["k3"]) - 1)
    with client_of(daemon, "tcp") as client:
        with contextlib.suppress(InvalidRequest):
            client.get_into("k3", small)
        small.append(0)  # impossible while anybody has a view of it


class CuttingRelay(Relay):
    """Ends a connection in the middle of a large payload, while `cuts` are left."""

    cuts = 1
    on_cut: Callable[[], object] = staticmethod(lambda: None)

    def send(self, client: socket.socket, frame: bytes) -> None:
        if len(frame) > 64 << 10 and self.cuts:
            self.cuts -= 1
            self.on_cut()
            client.sendall(frame[: len(frame) // 2])
            raise EOFError
        client.sendall(frame)


def test_r16_a_connection_that_ends_in_the_middle_of_a_value(
    daemon: StoreProcess, values: dict[str, bytes]
) -> None:
    """Asked for again; a value of which only a part comes is never got."""
    with (
        client_of(daemon) as client_here,
        CuttingRelay(daemon.listen or "") as relay,
        connect(relay.address, token=daemon.token, timeout_s=SECONDS) as client,
    ):
        buffers = [bytearray(size) for size in SIZES]
        assert client.get_many_into(list(values), buffers) == SIZES
        assert [bytes(each) for each in buffers] == list(values.values())
        assert relay.cuts == 0
        relay.cuts = 1
        relay.on_cut = lambda: client_here.remove("k3")
        assert client.get_into("k3", buffers[3]) is None
        client_here.put("k3", values["k3"])
        relay.on_cut = lambda: None
        relay.cuts = without_end = 1 << 30
        while relay.cuts == without_end:
            with pytest.raises((StoreUnavailable, StoreTimeout)):
                client.get_into("k3", buffers[3], timeout_s=0.3)


@given(
    st.lists(st.none() | st.integers(0, 600 << 10), min_size=1, max_size=5),
    st.integers(1 << 10, 300 << 10),
)
def test_values_arrive_in_pieces_of_any_size(sizes: list[int | None], piece: int) -> None:
    values = {index: os.urandom(size) for index, size in enumerate(sizes) if size is not None}
    payload = memoryview(b"".join(values.values()))
    reply = wire.GetReply(
        [-1 if size is None else size for size in sizes],
        [xxh3_64_intdigest(values.get(index, b"")) for index in range(len(sizes))],
    )

    def arrived(target: Target[T]) -> dict[int, T | None]:
        arrivals, left = Arrivals(range(len(sizes)), target), payload
        if sink := arrivals.place(reply, len(payload)):
            while sink.remaining:
                room = sink.room()[:piece]
                room[:] = left[: len(room)]
                sink.filled(len(room))
                left = left[len(room) :]
        return dict(arrivals.results(reply, left))

    buffers = [memoryview(bytearray(size or 0)) for size in sizes]
    helper = CopyHelper()
    assert arrived(IntoBuffers(buffers, helper)) == {
        index: len(value) for index, value in values.items()
    }
    helper.close()
    assert {index: bytes(buffers[index]) for index in values} == values
    assert arrived(AS_BYTES) == values
