"""`moontide worker`."""

from __future__ import annotations

from moontide.kvstore.service import Process, daemon_command

from .worker.settings import WorkerSettings


def _run(settings: WorkerSettings, process: Process) -> int:
    from .worker.process import run_worker

    return run_worker(settings, process)


worker = daemon_command(
    "worker", WorkerSettings, _run, "Run the built-in engine: a model behind HTTP, with the store."
)
