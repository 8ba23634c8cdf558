"""Processes of `moontide store` that need not import it again.

Most of a daemon's start is Python importing; hundreds of tests start one. One process a test run
imports the daemon, opens nothing, starts no thread, and forks: each child is a process of its own
from there on, with its own arguments, environment, directory and log, and runs the command as a
shell would have. What a start costs and says from nothing, tests/kvstore/daemon/test_lifecycle.py
and the tests of `moontide up` see."""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

MOST_REQUEST_BYTES = 1 << 20
END_SECONDS = 10.0


class PreparedProcess:
    """One child, seen as a subprocess.Popen of it would be. `arguments` follow `moontide`; it says
    what it has to say in `log`."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._parent = _parent()
        self.pid = self._parent.ask(
            arguments=arguments, log=str(log), environment=dict(os.environ), folder=os.getcwd()
        )
        self._ended = os.pidfd_open(self.pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reap() if self._has_ended(0.0) else None

    def wait(self, timeout: float) -> int:
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._reap()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # not reaped yet, so the number is still its

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, seconds: float) -> bool:
        return self.returncode is not None or _becomes_readable(self._ended, seconds)

    def _reap(self) -> int:
        if self.returncode is None:
            self.returncode = self._parent.ask(reap=self.pid)
            os.close(self._ended)
        return self.returncode


def _becomes_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class _Parent:
    """The process that has imported the daemon; it ends with the one that started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )

    def ask(self, **request: Any) -> int:
        with self._lock:
            self._socket.sendall(json.dumps(request).encode())
            answer = self._socket.recv(64)
        assert answer, f"it ended with {self._process.poll()}"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(END_SECONDS)


_parents: list[_Parent] = []  # one, once it is needed
_making = threading.Lock()


def _parent() -> _Parent:
    with _making:
        if not _parents:
            _parents.append(_Parent())
        return _parents[0]


def end_parent() -> None:
    """Once no test needs it any more."""
    while _parents:
        _parents.pop().close()


def _serve(descriptor: int) -> list[str]:
    """Forks and reaps until nobody asks any more. Returns only in children: their arguments."""
    requests = socket.socket(fileno=descriptor)
    while text := requests.recv(MOST_REQUEST_BYTES):
        request = json.loads(text)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            answer = os.waitstatus_to_exitcode(status)
        elif (answer := os.fork()) == 0:
            requests.close()
            return _become(**request)
        requests.sendall(b"%d" % answer)
    os._exit(0)


def _become(arguments: list[str], log: str, environment: dict[str, str], folder: str) -> list[str]:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(said, sys.stderr.fileno())
    os.close(said)
    sys.argv = ["moontide", *arguments]
    return arguments


if __name__ == "__main__":
    from moontide.kvstore.cli import main
    from moontide.kvstore.daemon import command  # noqa: F401 - to have imported it

    gc.freeze()  # what children share stays shared
    main(_serve(int(sys.argv[1])), prog_name="moontide")
