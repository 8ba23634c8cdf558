"""`moontide conductor`: run the front end in the foreground."""

from __future__ import annotations

import asyncio

import uvloop

from moontide.kvstore.membership import open_membership
from moontide.kvstore.service import Process, daemon_command, wait_for_stop

from .api_keys import read_api_keys
from .server import conductor as running_conductor
from .settings import ConductorSettings


def run(settings: ConductorSettings, process: Process) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, process))
    return 0


async def _serve(settings: ConductorSettings, process: Process) -> None:
    api_keys = read_api_keys(settings.api_keys_file) if settings.api_keys_file else []
    async with running_conductor(
        settings,
        open_membership(settings.cluster),
        token=process.token(),
        api_keys=api_keys,
        hosts=process.allowed_hosts,
    ) as server:
        process.report_ready(listen=server.address)
        await wait_for_stop()


conductor = daemon_command(
    "conductor",
    ConductorSettings,
    run,
    "Run the OpenAI-compatible front end that routes requests by prefix-cache hit.",
)
