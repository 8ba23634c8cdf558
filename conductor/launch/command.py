"""`moontide up` and `moontide demo`."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import click
import msgspec

from moontide.kvstore.service import Process, SettingsError, daemon_command

from .cluster import Cluster, Say, running
from .errors import ChildDied, TimedOut
from .plan import Plan, make_plan
from .ports import fixed_ports, free_ports
from .settings import DEFAULT_MODEL, DemoSettings, UpSettings
from .state import write_state

_WATCH_SECONDS = 0.1
_DEMO_PATIENCE_SECONDS = 30.0
"""Of the demo's workers with their stores: it shows where KV comes from, also on a machine so busy
that a worker had better compute."""


class _Stopped(Exception):
    """SIGINT or SIGTERM came: end everything, in order."""


def _run_up(settings: UpSettings, process: Process) -> int:
    # Told at once: a worker finds out after it has loaded its libraries.
    if settings.model != DEFAULT_MODEL and not Path(settings.model).expanduser().exists():
        raise SettingsError(
            f"model={settings.model}: there is no such file or directory; give {DEFAULT_MODEL}, a "
            "directory or a .gguf file"
        )
    return _with_cluster(settings, process, settings.run_dir, partial(_serve, settings))


def _run_demo(settings: DemoSettings, process: Process) -> int:
    from .demo import run_demo  # brings the table printer, which `up` does without

    whole = UpSettings(
        nodes=2,
        both=2,
        device=settings.device,
        lookup_seconds=_DEMO_PATIENCE_SECONDS,
        load_seconds=_DEMO_PATIENCE_SECONDS,
        dram=settings.dram,
        nvme=settings.nvme,
        port_base=0,
    )
    split = msgspec.structs.replace(whole, both=0, prefill=1, decode=1)
    say = _sayer("demo")

    def body(cluster: Cluster) -> int:
        now = cluster.plan
        plan = make_plan(split, run_dir=now.run_dir, token_file=now.token_file, ports=now.ports)
        return run_demo(settings, cluster, split=plan, token=process.token(), say=say)

    return _with_cluster(whole, process, None, body)


def _with_cluster(
    settings: UpSettings, process: Process, run_dir: Path | None, body: Callable[[Cluster], int]
) -> int:
    """Run `body` while the cluster runs; the exit status. The logs stay when something died."""
    say = _sayer(process.name)
    process.token()  # made once, before the children look for it
    try:
        with (
            _stoppable(),
            _run_directory(run_dir) as directory,
            running(_plan(settings, process, directory), say) as cluster,
        ):
            return body(cluster)
    except _Stopped:
        say("ended")
        return 0 if process.name == "up" else 1
    except (ChildDied, TimedOut) as error:  # their text is a log's lines
        say(str(error))
        return 1


def _serve(settings: UpSettings, cluster: Cluster) -> int:
    """Until a signal comes or a process keeps dying. The state file is there meanwhile."""
    try:
        _tell(settings, cluster)
        while True:
            time.sleep(_WATCH_SECONDS)
            if cluster.revive() and settings.state_file is not None:
                write_state(settings.state_file, cluster.state())
    finally:
        if settings.state_file is not None:
            settings.state_file.unlink(missing_ok=True)


def _plan(settings: UpSettings, process: Process, run_dir: Path) -> Plan:
    counts = {"nodes": settings.nodes, "workers": settings.num_workers}
    if settings.port_base:
        ports = fixed_ports(settings.port_base, **counts)
    else:
        ports = free_ports(random.Random(), **counts)
    return make_plan(
        settings, run_dir=run_dir, token_file=process.token_file.resolve(), ports=ports
    )


def _tell(settings: UpSettings, cluster: Cluster) -> None:
    """Say what runs where, in the state file and on stdout."""
    plan = cluster.plan
    if settings.state_file is not None:
        write_state(settings.state_file, cluster.state())
    click.echo(f"conductor  {plan.conductor.url}/v1  (OpenAI-compatible)")
    for node in plan.nodes:
        click.echo(f"store      {node.id}: unix:{node.socket}, admin {node.admin}")
    for worker in plan.workers:
        click.echo(f"worker     {worker.id}: {worker.role}, {settings.model}, {worker.url}")
    click.echo(f"logs       {plan.run_dir}   token {plan.token_file}")
    click.echo("ready; Ctrl-C ends all")


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM raise _Stopped, once: ending takes a bounded time and is not cut short."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _run_directory(given: Path | None) -> Iterator[Path]:
    """The directory given, kept; or a temporary one, removed unless an error needs its logs."""
    if given is not None:
        try:
            given.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise SettingsError(
                f"run_dir={given}: a file is in the way; give a directory, or a name for one"
            ) from error
        yield given.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="moontide-"))
    try:
        yield made
    except (ChildDied, TimedOut):  # their texts point to the logs
        raise
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    shutil.rmtree(made, ignore_errors=True)


def _sayer(command: str) -> Say:
    """Progress lines on stderr."""
    return lambda text: click.echo(f"moontide {command}: {text}", err=True)


up = daemon_command(
    "up",
    UpSettings,
    _run_up,
    "Run a Conductor, store daemons and workers on this machine, until Ctrl-C ends all.",
)
demo = daemon_command(
    "demo",
    DemoSettings,
    _run_demo,
    "Start everything, send real prompts over a real document, and print what the cache saved.",
)
