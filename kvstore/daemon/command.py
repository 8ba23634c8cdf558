"""`moontide store`: run the store daemon in the foreground."""

from __future__ import annotations

import asyncio

import uvloop

from ..service import Process, daemon_command
from .daemon import StoreDaemon
from .settings import StoreSettings


def run(settings: StoreSettings, process: Process) -> int:
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
