"""A real store daemon, its Python client, and a Conductor that predicts hits from its events."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moontide.kvstore import connect
from moontide.kvstore.membership import open_membership

from ..waiting import until
from .fake_model import BLOCK_TOKENS, LAYOUT, MODEL, NAMESPACE, TOKEN, tokenizer
from .fake_worker import FakeWorker
from .fakes import Cluster, in_loop, running

MOONTIDE = Path(sys.executable).with_name("moontide")
PROMPT = "four blocks of sixteen tokens, written to the pool by a client......"
TOKEN_IDS = tokenizer().encode(PROMPT).ids


@contextmanager
def store_daemon(tmp_path: Path, node: str = "node-a") -> Iterator[subprocess.Popen[str]]:
    token_file = tmp_path / "token"
    if not token_file.exists():
        token_file.touch(0o600)
        token_file.write_text(TOKEN)
    options = {
        "--node-id": node,
        "--data-dir": str(tmp_path / "data"),
        "--socket": str(tmp_path / "s.sock"),
        "--listen": "127.0.0.1:0",
        "--admin": "127.0.0.1:0",
        "--dram": "8MiB",
        "--segment": "1MiB",
        "--max-entries": "1024",
        "--cluster": f"file:{tmp_path / 'cluster'}",
        "--token-file": str(token_file),
    }
    process = subprocess.Popen(
        [MOONTIDE, "store", *(part for pair in options.items() for part in pair)],
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("MOONTIDE_")},
    )
    try:
        assert process.stderr is not None
        assert any(" ready " in line for line in process.stderr)
        yield process
    finally:
        process.kill()
        process.communicate()


def write_blocks(tmp_path: Path, num_blocks: int) -> None:
    """The first blocks of the prompt, as an engine without its own cache would leave them."""
    layer = bytes(LAYOUT.layer_bytes(LAYOUT.whole()[0], BLOCK_TOKENS))
    with connect(f"unix:{tmp_path / 's.sock'}") as client:
        kv = client.kv(NAMESPACE)
        with kv.writer(TOKEN_IDS[: num_blocks * BLOCK_TOKENS]) as writer:
            for index in range(2):
                writer.layer(index, [layer] * num_blocks)


async def predicts(cluster: Cluster, num_blocks: int) -> None:
    async def predicted() -> bool:
        body = {"model": MODEL, "prompt": PROMPT}
        _, answer, _ = await cluster.post("/v1/route", body)
        return bool(answer.get("cached_tokens") == num_blocks * BLOCK_TOKENS)

    await until(predicted, f"{num_blocks} blocks are predicted")


@in_loop
async def test_hits_follow_a_real_store_through_a_restart(tmp_path: Path) -> None:
    membership = open_membership(f"file:{tmp_path / 'cluster'}")
    worker = FakeWorker()
    async with running(worker, membership=membership) as cluster:

        async def joined() -> bool:
            stores = (await cluster.status())["stores"]
            if not stores or stores[0]["events"] != "live":
                return False
            worker.store_instance = stores[0]["instance"]
            cluster.join(worker)  # as a worker tells which daemon it found
            return True

        with store_daemon(tmp_path) as daemon:
            await until(joined, "the store is followed")
            await asyncio.to_thread(write_blocks, tmp_path, 2)
            await predicts(cluster, 2)
            await asyncio.to_thread(write_blocks, tmp_path, 4)
            await predicts(cluster, 4)
            daemon.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait, 15) == 0
        status, _ = await cluster.complete(PROMPT)
        assert status == 200  # requests do not need the store
        former = worker.store_instance
        with store_daemon(tmp_path):

            async def joined_anew() -> bool:
                return await joined() and worker.store_instance != former

            await until(joined_anew, "the new daemon is followed")
            await predicts(cluster, 0)
            await asyncio.to_thread(write_blocks, tmp_path, 3)
            await predicts(cluster, 3)
