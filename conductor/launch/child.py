"""One child process: its command, its log file, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moontide.kvstore.service import die_with_parent

_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to start. `arguments` follow `moontide`; `ready_url` answers 200 once it takes work."""

    name: str
    waits_for: str  # for the progress line
    arguments: tuple[str, ...]
    ready_url: str
    log_file: Path
    environment: Mapping[str, str]


class Child:
    """A running process of `spec`. Its output goes to the log file; it gets SIGTERM when we die."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        with spec.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                # -P: a random.py in the working directory is not the one that is meant
                [sys.executable, "-P", "-m", "moontide.kvstore.cli", *spec.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **spec.environment},
                start_new_session=True,  # Ctrl-C reaches only us: we end them in order
                preexec_fn=die_with_parent(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended in time."""
        try:
            self._process.wait(max(timeout_s, 0.01))
        except subprocess.TimeoutExpired:
            return False
        return True

    def describe_end(self) -> str:
        status = self._process.returncode
        if status is not None and status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"


def last_lines(log_file: Path, count: int) -> Sequence[str]:
    """The end of a log, at most `count` lines."""
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-count:]
