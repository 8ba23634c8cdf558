"""Ways to the disk that a host does not offer: the tier works without, and says so."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ... import refusing
from ...store_process import DEFAULT_FLAGS, StoreProcess
from .warm import NVME, admin_of, check_at_rest, client_of, put_all, values, wait_flushed

TRY_IO_URING = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall({refusing.IO_URING_SETUP}, 1, None), ctypes.get_errno())
"""


class RefusedStore(StoreProcess):
    """A daemon to which the kernel refuses something."""

    what = ""

    def command(self, *more: str) -> list[str]:
        return [sys.executable, refusing.__file__, self.what, *super().command(*more)]

    def launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self.command(), stderr=log, stdin=subprocess.DEVNULL)


@pytest.fixture
def refused_store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RefusedStore]:
    flags = [part for flag in DEFAULT_FLAGS.items() for part in flag]
    with tempfile.TemporaryDirectory(prefix="mt-") as folder:
        node = RefusedStore(tmp_path, Path(folder) / "s.sock", (*flags, *NVME))
        node.what = request.param
        node.start()
        yield node
        node.kill()


def check_disk_works(node: StoreProcess) -> None:
    entries = values(100)
    entries["large"] = random.Random(1).randbytes(1 << 20)
    with client_of(node) as client:
        put_all(client, entries)
    wait_flushed(node, len(entries))
    node.restart()
    with client_of(node) as client:
        assert client.get_many(list(entries)) == list(entries.values())
    assert admin_of(node).stats()["tiers"]["nvme"]["hits"] == len(entries)
    check_at_rest(node)


@pytest.mark.parametrize("refused_store", ["direct-io"], indirect=True)
def test_r54_without_direct_io_the_page_cache_is_used_and_stats_say_so(
    refused_store: RefusedStore,
) -> None:
    """The status is right before anything is written."""
    assert admin_of(refused_store).stats()["nvme"]["io"] == "posix-buffered"
    assert "nvme_no_direct_io" in refused_store.log.read_text()
    check_disk_works(refused_store)
    assert admin_of(refused_store).stats()["nvme"]["io"] == "posix-buffered"


@pytest.mark.parametrize("refused_store", ["io-uring"], indirect=True)
def test_r74_refused_io_uring_changes_nothing_as_posix_io_is_used(
    refused_store: RefusedStore,
) -> None:
    tried = subprocess.run(
        [sys.executable, refusing.__file__, "io-uring", sys.executable, "-c", TRY_IO_URING],
        check=True,
        capture_output=True,
        text=True,
    )
    assert tried.stdout.split() == ["-1", str(errno.EPERM)]
    assert admin_of(refused_store).stats()["nvme"]["io"].startswith("posix-")
    check_disk_works(refused_store)
