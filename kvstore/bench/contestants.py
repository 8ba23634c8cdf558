"""The process of one contestant: started once, asked request by request, with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

STOP_SECONDS = 15.0
MAX_ANSWER_BYTES = 64 << 20
_READ_BYTES = 1 << 16
_SHOWN_LINES = 4
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""The folder goes to the end of the path, where none of its modules can hide another."""


class ContestantFailed(Exception):
    """A contestant crashed, hung, or could not do what it was asked. It takes no further part."""


class Contestant:
    """One running driver. Ends, with all processes it started, on `close`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.version = ""
        self._log = log
        self._answers = b""
        self._ended = False
        self._failed = False
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **_ONE_THREAD},
                start_new_session=True,
            )

    def begin(self, settings: Mapping[str, Any], timeout_s: float) -> None:
        """Raises ContestantFailed when it cannot run here."""
        self.version = self.ask({"do": "begin", **settings}, timeout_s)["version"]

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        """The answer. Raises ContestantFailed, after which the contestant must be closed."""
        try:
            return self._ask(request, timeout_s)
        except ContestantFailed:
            self._failed = True
            raise

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ContestantFailed(self._epitaph()) from error
        line = self._line(time.monotonic() + timeout_s, request["do"])
        try:
            answer = json.loads(line)
            if "error" not in answer:
                return answer["ok"]
            told = answer["error"]
        except (ValueError, KeyError, TypeError) as error:
            raise ContestantFailed(f"{self.name}: {request['do']}: no answer but noise") from error
        raise ContestantFailed(f"{self.name}: {request['do']}: {told}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Its processes run within the context and stand still after it, so that nothing they do on
        their own disturbs another's measurement."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Idempotent. Its end of stdin ends it, unless it has failed; what is left of its processes
        is killed."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self._failed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self._end()

    def _end(self) -> None:
        """Kills it and the processes it started."""
        assert self._process.stdout is not None
        if self._ended:
            return
        self._signal(signal.SIGKILL)
        self._ended = True  # from now on its number may be another's
        self._process.wait(STOP_SECONDS)
        self._process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _line(self, deadline: float, doing: str) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0 or not wait([descriptor], left):
                raise ContestantFailed(f"{self.name}: {doing} gave no answer within its time")
            chunk = os.read(descriptor, _READ_BYTES)
            if not chunk:
                raise ContestantFailed(self._epitaph())
            self._answers += chunk
            if len(self._answers) > MAX_ANSWER_BYTES:
                raise ContestantFailed(
                    f"{self.name}: an answer of more than {MAX_ANSWER_BYTES} bytes"
                )
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        lines = self._log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return f"{self.name} ended with status {self._process.poll()}: {' | '.join(lines)}"


def driver_command(module: str, python: Path | None = None) -> list[str]:
    """Runs `drivers.MODULE` in this interpreter, or in a peer's, which has not our packages."""
    if python is None:
        return [sys.executable, "-m", f"{__package__}.drivers.{module}"]
    return [str(python), "-c", _RUN, str(Path(__file__).parent), f"drivers.{module}"]
