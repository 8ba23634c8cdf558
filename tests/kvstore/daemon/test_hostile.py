"""Nothing a client sends, or stops sending, hurts anyone else (R20, R26, R61)."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moontide.kvstore import wire
from moontide.kvstore.types import PutStatus

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until, within
from .admin import Admin
from .raw_client import RawClient, entry_id, local_client, put_message, remote_client

FUZZ = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NUM_SEGMENTS = 16
REQUESTS = sorted(wire.Request.__args__, key=lambda kind: kind.__struct_config__.tag)


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon("--stall-seconds", "1", "--max-clients", "64")


@pytest.fixture(autouse=True)
def _empty_afterwards(admin: Admin) -> Iterator[None]:
    yield
    wait_until(lambda: admin.stats()["connections"] == 0)
    admin.post("/v1/clear")
    assert admin.stats()["internal_errors"] == 0


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def check_alive(daemon: StoreProcess) -> None:
    with local_client(daemon.socket) as client:
        assert client.put("alive", b"yes", if_exists="replace")[0] == PutStatus.STORED
        assert client.get("alive") == b"yes"


def send_until_refused(address: str, data: bytes, *, greeted: bool) -> None:
    client = RawClient(address)
    with client, contextlib.suppress(EOFError, OSError):
        if greeted:
            client.hello()
        client.socket.sendall(data)
        client.socket.shutdown(socket.SHUT_WR)
        client.socket.settimeout(5)
        while client.socket.recv(1 << 16):
            pass


def test_random_bytes_and_frames_end_one_connection_and_nothing_else(daemon: StoreProcess) -> None:
    address = f"unix:{daemon.socket}"
    before = resident_bytes(daemon.pid)

    @FUZZ
    @given(data=st.binary(min_size=1, max_size=300), greeted=st.booleans())
    def bytes_of_any_kind(data: bytes, greeted: bool) -> None:
        send_until_refused(address, data, greeted=greeted)

    @FUZZ
    @given(
        body=st.binary(max_size=100),
        body_bytes=st.integers(0, 0xFFFFFFFF),
        payload_bytes=st.integers(0, 0xFFFFFFFFFFFFFFFF),
        greeted=st.booleans(),
    )
    def lying_headers(body: bytes, body_bytes: int, payload_bytes: int, greeted: bool) -> None:
        head = wire.HEADER.pack(b"MT", 1, 0, 1, body_bytes, payload_bytes)
        send_until_refused(address, head + body, greeted=greeted)

    bytes_of_any_kind()
    lying_headers()
    check_alive(daemon)
    assert resident_bytes(daemon.pid) - before < 64 << 20


@pytest.mark.parametrize("seed", range(3))
def test_well_formed_frames_with_any_values_are_answered(
    daemon: StoreProcess, admin: Admin, seed: int
) -> None:
    """Every message type, fields drawn at random: each gets an answer, the daemon lives, nothing
    stays behind."""
    rng = random.Random(seed)
    with local_client(daemon.socket) as client:
        for _ in range(600):
            kind = rng.choice(REQUESTS)
            fields = [_random_value(rng, field.type) for field in msgspec.structs.fields(kind)]
            message = kind(*fields)
            payload = b""
            if kind is wire.Put:
                payload = bytes(min(sum(size for size in message.sizes if size > 0), 10_000))
            elif kind is wire.Write:
                payload = bytes(rng.choice([0, 1, 1000]))
            if kind is wire.NoteUse:
                client.send(message)  # whatever it says, it has no answer
            else:
                client.call_among(message, payload)
        last = client.call_among(put_message([("still", b"served")]), b"served").message
        assert last.results == [(PutStatus.STORED, "")]
    wait_until(lambda: admin.stats()["connections"] == 0)
    with local_client(daemon.socket, client.instance, quiesced=True) as again:
        for segment in range(NUM_SEGMENTS):  # those that a run was granted in
            again.call_among(wire.ReleaseSegment(segment))
        wait_until(lambda: admin.stats()["tickets"] == 0)
        admin.check_at_rest()


def _random_value(rng: random.Random, kind: Any) -> Any:
    text = str(kind)
    if get_origin(kind) is Literal:
        return rng.choice(get_args(kind))
    if text.startswith("list[tuple") or "tuple[str" in text:
        return [("full", rng.choice([0, 1, 2]), 1, 8, "float32", None, None)]
    if text.startswith("list[bytes]"):
        return [_random_bytes(rng) for _ in range(rng.choice([0, 1, 3]))]
    if text.startswith("list[str]"):
        return [_random_text(rng) for _ in range(rng.choice([0, 1, 3]))]
    if text.startswith("list[int]"):
        return [_random_int(rng) for _ in range(rng.choice([0, 1, 3]))]
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return _random_int(rng)
    if kind is float or text == "float | None":
        return rng.choice([0.0, 0.001, 0.05, -1.0, 1e300, float("nan"), float("inf")])
    if kind is str:
        return _random_text(rng)
    if text == "bytes | None":
        return rng.choice([None, b"", bytes(32)])
    assert kind is bytes, kind
    return _random_bytes(rng)


def _random_int(rng: random.Random) -> int:
    return rng.choice([0, 0, 1, 1, 2, 3, 100, -1, 1 << 31, 1 << 40, (1 << 64) - 1])


def _random_text(rng: random.Random) -> str:
    return rng.choice(["", "w", "node/1/00", "\x00", "é" * 100])


def _random_bytes(rng: random.Random) -> bytes:
    shard = struct.pack(">BHHHH", 0, 0, 1, 0, 1)
    return rng.choice(
        [b"", b"s", b"sa", b"sb", b"k" + bytes(16) + shard, bytes(16), bytes(32), shard]
    )


# -- clients that stop ------------------------------------------------------------


def test_a_client_that_stops_mid_put_is_dropped_and_its_space_returns(
    daemon: StoreProcess, admin: Admin
) -> None:
    used = admin.stats()["tiers"]["dram"]["used_bytes"]
    stalled = admin.stats()["closed"].get("stalled", 0)
    with local_client(daemon.socket) as client:
        frame = wire.encode_frame(put_message([("a", bytes(1 << 20))]), 1, 1 << 20)
        client.socket.sendall(frame + bytes(1000))
        wait_until(lambda: admin.stats()["in_flight"] == 1)
        check_alive(daemon)
        wait_until(lambda: admin.stats()["in_flight"] == 0)
    with local_client(daemon.socket) as client:
        assert client.get("a") is None
        client.call(wire.Remove([entry_id("alive")]))
    admin.check_at_rest()
    stats = admin.stats()
    assert stats["tiers"]["dram"]["used_bytes"] == used
    assert stats["closed"]["stalled"] == stalled + 1


def test_a_client_that_trickles_its_payload_is_dropped(daemon: StoreProcess, admin: Admin) -> None:
    """A byte now and then is no progress: it would hold its reservation for ever."""
    with local_client(daemon.socket) as client:
        frame = wire.encode_frame(put_message([("a", bytes(1 << 20))]), 1, 1 << 20)
        client.socket.sendall(frame)
        deadline = time.monotonic() + 10
        with contextlib.suppress(ConnectionError):
            while True:
                client.socket.sendall(b"x")
                assert time.monotonic() < deadline
                time.sleep(0.05)
    admin.check_at_rest()


def test_a_client_that_reads_nothing_is_not_read_from_and_then_dropped(
    daemon: StoreProcess, admin: Admin
) -> None:
    value = bytes(1 << 20)
    stalled = admin.stats()["closed"].get("stalled", 0)
    with local_client(daemon.socket) as client:
        client.put("a", value)
        client.socket.setblocking(False)
        frame = wire.encode_frame(wire.Get([entry_id("a")]), 1)
        sent = 0
        deadline = time.monotonic() + 10
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                try:
                    sent += client.socket.send(frame * 100)
                except BlockingIOError:
                    break
        check_alive(daemon)
        wait_until(lambda: admin.stats()["closed"].get("stalled", 0) == stalled + 1)
    wait_until(lambda: admin.stats()["pins"] == 0)
    with local_client(daemon.socket) as client:
        assert client.get("a") == value
    admin.check_at_rest()


def test_an_idle_client_is_kept(daemon: StoreProcess) -> None:
    with local_client(daemon.socket) as client:
        client.put("a", b"value")
        time.sleep(2.5)  # more than twice the stall limit, with nothing under way
        assert client.get("a") == b"value"


def test_one_that_never_greets_is_dropped(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as silent, RawClient(daemon.listen or "") as remote:
        remote.receive()
        for client in (silent, remote):
            assert client.socket.recv(1) == b""


def test_r20_healthz_and_others_answer_while_clients_misbehave(
    daemon: StoreProcess, admin: Admin
) -> None:
    with contextlib.ExitStack() as stack:
        for index in range(8):
            client = stack.enter_context(local_client(daemon.socket))
            client.socket.setblocking(False)
            flood = wire.encode_frame(wire.GetStats(), index) * 2000
            with contextlib.suppress(BlockingIOError):
                client.socket.send(flood)
        with local_client(daemon.socket) as good:
            for index in range(20):
                with within(2.0):
                    good.put(f"k{index}", b"value")
                    assert admin.get("/healthz") == {"status": "ok"}


# -- many -------------------------------------------------------------------------


def test_r26_a_storm_of_connections_is_served_or_refused_cleanly(
    daemon: StoreProcess, admin: Admin
) -> None:
    refused_before = admin.stats()["refused"].get("clients", 0)
    with contextlib.ExitStack() as stack:
        served = refused = 0
        for index in range(100):
            address = f"unix:{daemon.socket}" if index % 2 else daemon.listen or ""
            client = stack.enter_context(RawClient(address))
            try:
                answer = client.hello(token="" if index % 2 else daemon.token)
            except (OSError, EOFError):  # it hung up on a Hello under way
                refused += 1
                continue
            if isinstance(answer.message, wire.Failure):
                assert answer.message.code == "busy"
                refused += 1
            else:
                served += 1
        assert (served, refused) == (64, 36)
        stats = admin.stats()
        assert stats["connections"] == 64
        assert stats["refused"]["clients"] == refused_before + 36
    wait_until(lambda: admin.stats()["connections"] == 0)
    check_alive(daemon)


def test_r61_invented_and_repeated_ids_leave_no_state(daemon: StoreProcess, admin: Admin) -> None:
    before_releases = admin.stats()["double_releases"]
    with local_client(daemon.socket) as client:
        client.call(wire.Exists([entry_id("a")]))
        before = resident_bytes(daemon.pid)
        frame = wire.encode_frame(wire.Unpin(b"invented"), 7)
        for _round in range(100):
            client.socket.sendall(frame * 100)
            for _ in range(100):
                answer = client.receive()
                assert (answer.request_id, answer.message.code) == (7, "invalid_request")
        assert resident_bytes(daemon.pid) - before < 8 << 20
    assert admin.stats()["double_releases"] == before_releases + 10_000
    admin.check_at_rest()


def test_waits_are_bounded(daemon: StoreProcess) -> None:
    with local_client(daemon.socket) as client:
        reserved = client.call(wire.Reserve([entry_id("a")], [10])).message.results[0]
        frame = wire.encode_frame(wire.AwaitExtent(reserved[1], reserved[2], 0, 60.0), 1)
        client.socket.sendall(frame * 5000)
        assert client.receive().message.code == "busy"


def test_descriptors_do_not_leak_over_connections(daemon: StoreProcess, admin: Admin) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))

    with local_client(daemon.socket) as client:
        client.put("a", b"value")
    wait_until(lambda: admin.stats()["connections"] == 0)
    before = descriptors()
    for _ in range(50):
        with local_client(daemon.socket), remote_client(daemon.listen or "", daemon.token):
            pass
    wait_until(lambda: admin.stats()["connections"] == 0)
    # this process lives on under 50 more names, each watched through one pidfd
    assert descriptors() - before <= 52
