"""KV blocks on asyncio: the same calls, awaited, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from moontide.kvstore import (
    AsyncBlockReader,
    AsyncBlockStore,
    AsyncBlockWriter,
    AsyncClient,
    BlockReader,
    BlockStore,
    BlockWriter,
    JobResult,
    JobStatus,
    StoreTimeout,
    StoreUnavailable,
    ViewExpired,
    connect_async,
)

from ...store_process import StartStore, StoreProcess
from ...waiting import within
from .helpers import (
    NAMESPACE,
    SECONDS,
    TOKENS,
    address,
    buffers_for,
    check_prompt,
    client_of,
    hit_under_way,
    layers_of,
    write_prompt,
)


@pytest.fixture(scope="module")
def daemon(module_store_daemon: StartStore) -> StoreProcess:
    return module_store_daemon()


def run(
    daemon: StoreProcess,
    work: Callable[[AsyncClient, AsyncBlockStore], Awaitable[None]],
    transport: str = "unix",
) -> None:
    async def main() -> None:
        token = daemon.token if transport == "tcp" else ""
        async with (
            await connect_async(
                address(daemon, transport), token=token, timeout_s=SECONDS
            ) as client,
            await client.kv(NAMESPACE) as kv,
        ):
            await client.clear()
            await work(client, kv)

    asyncio.run(main())


@asynccontextmanager
async def ticking(least: int) -> AsyncIterator[None]:
    """Asserts that the loop ran other tasks meanwhile."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    task = asyncio.create_task(tick())
    try:
        yield
        assert ticks >= least
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("mirror", "original"),
    [
        (AsyncBlockStore, BlockStore),
        (AsyncBlockReader, BlockReader),
        (AsyncBlockWriter, BlockWriter),
    ],
)
def test_it_mirrors_every_call(mirror: type, original: type) -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(call).parameters)
            for name, call in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") and name != "open"  # client.kv has done it
        }

    assert calls(mirror) == calls(original)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_blocks_are_written_found_and_read(daemon: StoreProcess, transport: str) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        keys = kv.keys(TOKENS)
        content = layers_of(kv, keys)
        async with kv.writer(TOKENS, timeout_s=SECONDS) as writer:
            await writer.layer(0, content[0])
            async with kv.reader(TOKENS, timeout_s=SECONDS) as reader:
                assert (reader.num_tokens, reader.blocks) == (96, tuple(keys))
                assert await reader.layer(0) == content[0]
                waiting = asyncio.create_task(reader.layer(3))
                for layer in (1, 2, 3):
                    assert not waiting.done()
                    await writer.layer(layer, content[layer])
                assert await waiting == content[3]
        assert writer.failed_blocks == ()
        hit = await kv.lookup(TOKENS, pin_s=SECONDS)
        assert hit.num_tokens == 96
        buffers = buffers_for(kv, range(4), 6)
        assert (await kv.load(hit.ticket, range(4), buffers)).status is JobStatus.DONE
        assert buffers == content
        kv.release(hit.ticket)

    run(daemon, work, transport)
    with client_of(daemon) as client, client.kv(NAMESPACE) as kv:
        assert check_prompt(kv, TOKENS) == 96


def test_a_writer_that_fails_leaves_nothing(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        content = layers_of(kv, kv.keys(TOKENS))

        async def fail() -> None:
            async with kv.writer(TOKENS) as writer:
                await writer.layer(0, content[0])
                raise RuntimeError("engine")

        with pytest.raises(RuntimeError, match="engine"):
            await fail()
        assert (await kv.lookup(TOKENS)).num_tokens == 0
        writer = kv.writer(TOKENS)
        async with writer, kv.reader(range(1)) as reader:
            assert reader.num_tokens == 0
            await writer.abort()
        assert (await client.stats())["in_flight"] == 0

    run(daemon, work)


def test_a_reader_hears_that_the_writer_gave_up(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        content = layers_of(kv, kv.keys(TOKENS))
        async with kv.writer(TOKENS) as writer:
            await writer.layer(0, content[0])
            async with kv.reader(TOKENS) as reader:
                waiting = asyncio.create_task(reader.layer(1))
                await asyncio.sleep(0)
                await writer.abort()
                with pytest.raises(ViewExpired):
                    await waiting

    run(daemon, work)


def test_job_results_arrive_through_the_event_loop(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        with client_of(daemon) as other, other.kv(NAMESPACE) as source:
            await asyncio.to_thread(write_prompt, source, TOKENS)
        readable = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(kv.fileno(), readable.set)
        job = kv.submit_lookup(TOKENS, deadline_s=SECONDS)
        async with asyncio.timeout(SECONDS):
            await readable.wait()
        loop.remove_reader(kv.fileno())
        (result,) = kv.poll()
        assert (result.job, result.status) == (job, JobStatus.DONE)
        assert result.hit is not None
        assert result.hit.num_tokens == 96
        kv.release(result.hit.ticket)

    run(daemon, work)


def test_r10_r17_a_cancelled_load_touches_nothing_more(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        content = layers_of(kv, kv.keys(TOKENS))
        with client_of(daemon) as other, other.kv(NAMESPACE) as looker:
            async with kv.writer(TOKENS) as writer:
                await writer.layer(0, content[0])
                hit = await asyncio.to_thread(hit_under_way, looker, TOKENS)
                buffers = buffers_for(kv, range(4), 6)
                loading = asyncio.create_task(kv.load(hit.ticket, range(4), buffers))
                while buffers[0] != content[0]:
                    await asyncio.sleep(0.005)
                loading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await loading
                for row in buffers:
                    for buffer in row:
                        buffer[:] = bytes(len(buffer))
                for layer in (1, 2, 3):
                    await writer.layer(layer, content[layer])
            assert buffers == buffers_for(kv, range(4), 6)
            kv.release(hit.ticket)

    run(daemon, work)


def test_r17_a_cancelled_lookup_keeps_no_pin(daemon: StoreProcess) -> None:
    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        async with kv.writer(TOKENS) as writer:
            for layer, content in enumerate(layers_of(kv, kv.keys(TOKENS))):
                await writer.layer(layer, content)
        for turns in range(20):
            looking = asyncio.create_task(kv.lookup(TOKENS, pin_s=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            looking.cancel()
            with suppress(asyncio.CancelledError):
                kv.release((await looking).ticket)
        async with asyncio.timeout(SECONDS):
            while (await client.stats())["pins"]:
                await asyncio.sleep(0.005)

    run(daemon, work)


def test_r21_the_loop_goes_on_while_the_daemon_does_not(store_daemon: StartStore) -> None:
    daemon = store_daemon()

    async def work(client: AsyncClient, kv: AsyncBlockStore) -> None:
        async with kv.writer(TOKENS) as writer:
            for layer, content in enumerate(layers_of(kv, kv.keys(TOKENS))):
                await writer.layer(layer, content)
        hit = await kv.lookup(TOKENS)
        buffers = buffers_for(kv, [0], 6)
        await kv.load(hit.ticket, [0], buffers)  # maps the segment
        with daemon.stopped():
            with within(0.33 + 0.3):
                async with ticking(10):
                    outcomes: list[object] = await asyncio.gather(
                        *(kv.lookup(TOKENS, timeout_s=0.3) for _ in range(50)),
                        return_exceptions=True,
                    )
            assert all(isinstance(each, StoreTimeout | StoreUnavailable) for each in outcomes)
            loaded: JobResult = await kv.load(hit.ticket, [0], buffers)  # needs no daemon
            assert loaded.status is JobStatus.DONE
        daemon.kill()
        with pytest.raises(StoreUnavailable):
            await kv.lookup(TOKENS, timeout_s=0.3)
        daemon.start()
        assert (await kv.lookup(TOKENS, timeout_s=SECONDS)).num_tokens == 0

    run(daemon, work)
