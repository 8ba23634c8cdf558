"""What `moontide demo` does with a running cluster."""

from __future__ import annotations

from collections.abc import Callable

from ..cluster import Cluster
from ..errors import Unreachable
from ..plan import Plan
from ..settings import DemoSettings
from .prompts import QUESTIONS
from .recorder import Recorder
from .report import Report, print_table, this_machine, write_json
from .services import Services
from .split import SplitRequests
from .whole import WholeRequests

Say = Callable[[str], None]


def run_demo(settings: DemoSettings, cluster: Cluster, *, split: Plan, token: str, say: Say) -> int:
    """Send every question in every way, print and write the report; 0 only if every row is right.
    `cluster` runs two nodes with a worker of both roles each; `split` is the same one with a
    prefill and a decode worker instead. Raises ChildDied when a process ends meanwhile, another
    LaunchError when a service refuses."""
    try:
        recorder = _run(settings, cluster, split, token, say)
    except Unreachable:
        cluster.check()  # rather say who died than which connection broke
        raise
    rows = tuple(recorder.rows)
    report = Report(
        not any(row.wrong for row in rows), this_machine(), recorder.services.model, rows
    )
    if settings.json is not None:
        write_json(settings.json, report)
    print_table(report)
    return 0 if report.ok else 1


def _run(settings: DemoSettings, cluster: Cluster, split: Plan, token: str, say: Say) -> Recorder:
    questions = QUESTIONS[: settings.questions]
    recorder = Recorder(_joined(cluster, token), say)
    whole = WholeRequests(recorder, cluster.restart_stores)
    whole.warm_up()
    colds = [whole.run(question) for question in questions]

    say("waiting for a prefill and a decode worker to take over")
    cluster.change_workers(split)
    recorder.services = _joined(cluster, token)
    handed_off = SplitRequests(recorder)
    handed_off.warm_up()
    for question, cold in zip(questions, colds, strict=True):
        handed_off.run(question, cold)
    return recorder


def _joined(cluster: Cluster, token: str) -> Services:
    services = Services(cluster.plan, token)
    services.await_joined()
    return services
