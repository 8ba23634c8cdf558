"""`moontide worker`."""

from __future__ import annotations

import contextlib

from moontide.kvstore.membership import open_membership
from moontide.kvstore.service import Process, bind_listener, daemon_command

from .worker.settings import WorkerSettings


def _run(settings: WorkerSettings, process: Process) -> int:
    """What is quickly found wrong is told before torch and the model are loaded, which takes
    seconds."""
    membership = open_membership(settings.cluster)
    with contextlib.closing(bind_listener(settings.listen)) as listener:
        from .worker.process import run_worker

        return run_worker(settings, process, membership, listener)


worker = daemon_command(
    "worker", WorkerSettings, _run, "Run the built-in engine: a model behind HTTP, with the store."
)
