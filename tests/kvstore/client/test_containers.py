"""Daemons in containers: equal host names, node ids and process numbers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moontide.kvstore import connect
from moontide.kvstore.daemon.data_dir import read_state

from ...waiting import wait_until

SHORT_SECONDS = 15.0


@contextmanager
def contained_store(folder: Path, socket: Path) -> Iterator[str]:
    """A store as process 1 of namespaces of its own; its instance."""
    folder.mkdir()
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [
        *("unshare", *as_root, "--pid", "--uts", "--ipc", "--fork", "--kill-child"),
        *(sys.executable, "-m", "moontide.kvstore.cli", "store", "--node-id", "twin"),
        *("--data-dir", str(folder / "data"), "--socket", str(socket)),
        *("--token-file", str(folder / "token")),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--dram", "16MiB", "--segment", "4MiB", "--max-entries", "1000"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until(lambda: read_state(folder / "data") or process.poll() is not None, SHORT_SECONDS)
        state = read_state(folder / "data")
        assert state is not None, (folder / "log").read_text()
        assert state.pid == 1
        yield state.instance
    finally:
        process.kill()
        process.wait(SHORT_SECONDS)


def test_r24_containers_with_equal_names_are_told_apart(tmp_path: Path) -> None:
    """Node name and process number prove nothing. A daemon that cannot see a client's process, and
    so not its end either, shares no memory with it."""
    with ExitStack() as stack:
        sockets = Path(tempfile.mkdtemp(prefix="mt-"))  # pytest's paths can be too long for one
        stack.callback(shutil.rmtree, sockets)
        stores = {}
        for number in range(2):
            socket = sockets / f"{number}.sock"
            stores[socket] = stack.enter_context(contained_store(tmp_path / f"{number}", socket))
        first, second = stores.values()
        assert first.rpartition("/")[0] == second.rpartition("/")[0] == "twin/1"
        assert first != second
        clients = [stack.enter_context(connect(f"unix:{socket}")) for socket in stores]
        values = [bytes([number]) * 300_000 for number in range(2)]
        for client, value in zip(clients, values, strict=True):
            client.put("key", value)
        assert [client.get("key") for client in clients] == values
        assert [client.stats()["instance"] for client in clients] == [first, second]
        assert all(client.stats()["segments_granted"] == 0 for client in clients)
