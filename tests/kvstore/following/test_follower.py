"""Following an event stream that loses, repeats and swaps events, and one of a real store."""

from __future__ import annotations

import asyncio
import random
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from moontide.kvstore import EntryId, StoreClient, string_entry_id
from moontide.kvstore.events import KvEvent, SnapshotBegin
from moontide.kvstore.following import EventFollower, FollowedStore, event_session
from moontide.kvstore.following.follower import MAX_DETAIL_CHARACTERS
from moontide.kvstore.index import Phase, PrefixIndex
from moontide.kvstore.membership import StoreRecord

from ...store_process import StartStore, StoreProcess
from ...waiting import until
from ..client.helpers import NAMESPACE, client_of, write_prompt
from ..daemon.admin import Admin

SECONDS = 10.0
INSTANCE = "node-x/7/" + "5a" * 16
KEYS = [string_entry_id(f"key {number}") for number in range(6)]


def event(seq: int, key: EntryId) -> KvEvent:
    return KvEvent(seq=seq, kind="stored", instance=INSTANCE, tier="dram", entries=(key.hex(),))


def sse(name: str, body: object) -> bytes:
    return f"event: {name}\ndata: {msgspec.json.encode(body).decode()}\n\n".encode()


class ScriptedStore:
    """Its first stream tells `faulty` after an empty snapshot; every later one the truth."""

    def __init__(self, faulty: Sequence[KvEvent]) -> None:
        self.faulty = faulty
        self.streams = 0

    async def events(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        self.streams += 1
        response = web.StreamResponse()
        await response.prepare(request)
        if self.streams == 1:
            pieces = [sse("snapshot", SnapshotBegin(INSTANCE, 0)), sse("live", {"seq": 0})]
            pieces += [sse("kv", told) for told in self.faulty]
        else:
            seq = len(KEYS)
            pieces = [sse("snapshot", SnapshotBegin(INSTANCE, seq))]
            pieces += [sse("kv", event(seq, key)) for key in KEYS]
            pieces.append(sse("live", {"seq": seq}))
        await response.write(b"".join(pieces))
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return response


@asynccontextmanager
async def following(record: StoreRecord, token: str) -> AsyncIterator[PrefixIndex]:
    index = PrefixIndex(max_strings=100_000)
    async with event_session(token) as session:
        follower = asyncio.create_task(EventFollower(FollowedStore(record), index, session).run())
        try:
            yield index
        finally:
            follower.cancel()
            await asyncio.wait({follower})


def record_of(url: str, instance: str = INSTANCE, name: str = "node-x") -> StoreRecord:
    return StoreRecord(id=name, instance=instance, admin_url=url, data_address="", socket="")


@pytest.mark.parametrize(
    "faulty",
    [
        pytest.param([event(1, KEYS[0]), event(3, KEYS[2])], id="missing"),
        pytest.param([event(1, KEYS[0]), event(1, KEYS[0])], id="repeated"),
        pytest.param([event(2, KEYS[1]), event(1, KEYS[0])], id="swapped"),
        pytest.param([event(9, KEYS[5])], id="ahead"),
    ],
)
def test_r37_events_that_are_missing_repeated_or_swapped_lead_to_a_new_snapshot(
    faulty: list[KvEvent],
) -> None:
    assert resyncs_after(faulty) == 1


def test_an_event_that_no_store_would_tell_at_once_leads_to_a_new_snapshot() -> None:
    flood = msgspec.structs.replace(event(1, KEYS[0]), entries=(KEYS[0].hex(),) * 40_000)
    assert resyncs_after([flood]) == 0  # it is not even taken in


def resyncs_after(faulty: Sequence[KvEvent]) -> int:
    """Until a second stream told the truth."""

    async def run() -> int:
        store = ScriptedStore(faulty)
        app = web.Application()
        app.router.add_get("/v1/events", store.events)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        try:
            async with following(record_of(f"http://{host}:{port}"), "secret") as index:
                await until(lambda: all(map(index.holders, KEYS)))
                view = index.streams()["node-x"]
                assert (view.phase, store.streams) == (Phase.LIVE, 2)
                index.check_integrity()
                return view.resyncs
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def test_of_an_answer_that_is_none_little_is_told() -> None:
    """It is logged at each try, and shown to whoever asks how the stream is doing."""
    asyncio.run(_is_told_briefly(b"no answer of HTTP " * 4000))


async def _is_told_briefly(answer: bytes) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        store = FollowedStore(record_of(f"http://{host}:{port}"))
        async with event_session("secret") as session:
            follower = asyncio.create_task(EventFollower(store, PrefixIndex(), session).run())
            try:
                await until(lambda: "not connected" not in store.detail, seconds=SECONDS)
                assert 0 < len(store.detail) <= MAX_DETAIL_CHARACTERS
            finally:
                follower.cancel()
                await asyncio.wait({follower})


def test_events_of_another_instance_are_not_taken_in(store_daemon: StartStore) -> None:
    daemon = store_daemon()

    async def run() -> None:
        record = record_of(daemon.admin, instance="node-a/1/" + "00" * 16, name="node-a")
        store, index = FollowedStore(record), PrefixIndex(max_strings=10)
        async with event_session(daemon.token) as session:
            follower = asyncio.create_task(EventFollower(store, index, session).run())
            await until(lambda: daemon.instance in store.detail)
            follower.cancel()
            await asyncio.wait({follower})
        assert index.streams() == {}

    with client_of(daemon) as client:
        client.put("a", b"1")
        asyncio.run(run())


def test_r38_after_churn_the_index_holds_what_the_stores_hold(
    store_daemon: StartStore, tmp_path: Path
) -> None:
    """Evictions (the pools are small), times to live, removals, clears, with seed 11."""
    daemons = [
        store_daemon("--dram", "4MiB", "--segment", "1MiB", "--node-id", f"node-{name}")
        for name in "ab"
    ]
    rng = random.Random(11)

    async def run() -> None:
        records = [record_of(d.admin, d.instance, d.instance.split("/")[0]) for d in daemons]
        async with (
            following(records[0], daemons[0].token) as first,
            following(records[1], daemons[1].token) as second,
        ):
            for daemon in daemons:
                with client_of(daemon) as client:
                    await asyncio.to_thread(churn, client, rng)
            for daemon, index in zip(daemons, (first, second), strict=True):
                admin = Admin(daemon.admin, daemon.token)
                seq = (await asyncio.to_thread(admin.stats))["events_seq"]
                await until(lambda i=index, s=seq: [v.seq for v in i.streams().values()] == [s])
                await asyncio.to_thread(compare, admin, index, daemon)

    asyncio.run(run())


def churn(client: StoreClient, rng: random.Random) -> None:
    for step in range(400):
        key = f"key {rng.randrange(60)}"
        what = rng.random()
        if what < 0.6:
            size = rng.choice((100, 20_000, 200_000))
            client.put(key, rng.randbytes(size), if_exists=rng.choice(("keep", "replace")))
        elif what < 0.8:
            client.remove(key)
        elif what < 0.9:
            client.put(key, b"short-lived", ttl_s=0.05)
        elif step == 200:
            client.clear()
    with client.kv(NAMESPACE) as kv:
        for start in range(0, 3000, 1000):
            write_prompt(kv, range(start, start + 100))


def compare(admin: Admin, index: PrefixIndex, daemon: StoreProcess) -> None:
    index.check_integrity()
    entries = admin.get("/v1/blocks?limit=1000")["entries"]
    stored = {urllib.parse.unquote(e["key"][2:]) for e in entries if e["key"].startswith("s:")}
    for number in range(60):
        held = index.holders(string_entry_id(f"key {number}")) == [(daemon.instance, "dram")]
        assert held == (f"key {number}" in stored)
    blocks = {entry["key"] for entry in entries if entry["key"].startswith("kv:")}
    assert index.num_blocks == len(blocks) > 0
