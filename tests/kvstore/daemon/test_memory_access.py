"""What can be done with the memory that the daemon hands out as descriptors."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path

from moontide.kvstore import wire

from ...store_process import StartStore, StoreProcess
from .raw_client import RawClient, local_client

NOBODY = 65534


def test_the_pool_cannot_be_reopened_through_proc_for_writing(store_daemon: StartStore) -> None:
    """Neither by the descriptors a client was given nor by the daemon's own: as the user who owns
    the memory, but not as root, who may everything."""
    daemon = store_daemon()
    with local_client(daemon.socket) as client:
        client.put("a", b"value")
    child = os.fork()
    if not child:
        status = 1
        try:
            reopen_everything(daemon)
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with local_client(daemon.socket) as client:
        assert client.get("a") == b"value"


def reopen_everything(daemon: StoreProcess) -> None:
    with RawClient(f"unix:{daemon.socket}") as client:
        welcome = client.hello()
        segment = client.call(wire.MapSegment(0))
        handed = [*welcome.descriptors, *segment.descriptors]
        assert len(handed) == 2
        descriptors = Path(f"/proc/{daemon.pid}/fd").iterdir()
        theirs = [path for path in descriptors if "memfd:" in os.readlink(path)]
        assert len(theirs) > 2
        if os.geteuid() == 0:
            become_the_owner(handed)
        for descriptor in handed:
            assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
            refuse_writing(Path(f"/proc/self/fd/{descriptor}"))
            with contextlib.suppress(PermissionError):
                mmap.mmap(descriptor, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
                raise AssertionError("mapped for writing")
        for path in theirs:
            refuse_writing(path)


def become_the_owner(descriptors: list[int]) -> None:
    """From root to a user without rights to whom the memory belongs."""
    for descriptor in descriptors:
        os.fchown(descriptor, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def refuse_writing(path: Path) -> None:
    try:
        os.open(path, os.O_RDWR)
    except PermissionError:
        return
    raise AssertionError(f"{path} was reopened for writing")
