"""`moontide store`: run the store daemon in the foreground."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from ..service import Process, daemon_command
from .daemon import StoreDaemon
from .settings import StoreSettings

SWITCH_SECONDS = 0.0005
"""A thread that has work for the disk waits so long for the interpreter while the loop is busy; the
default is ten times that, for each of its system calls."""


def run(settings: StoreSettings, process: Process) -> int:
    sys.setswitchinterval(SWITCH_SECONDS)
    daemon = StoreDaemon(settings, process)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(daemon.serve())
    finally:
        daemon.close()
    return 0


store = daemon_command(
    "store",
    StoreSettings,
    run,
    "Run one node's KV cache store: its pool, data port and admin REST.",
)
