"""What `moontide demo` does with a running cluster."""

from __future__ import annotations

from collections.abc import Callable

from ..cluster import Cluster
from ..errors import Unreachable
from ..settings import DemoSettings
from .prompts import QUESTIONS
from .report import Report, print_table, this_machine, write_json
from .scenario import Scenario
from .services import Services


def run_demo(
    settings: DemoSettings, cluster: Cluster, *, token: str, say: Callable[[str], None]
) -> int:
    """Send every question in every way, print and write the report; 0 only if every row is right.
    Raises ChildDied when a process ends meanwhile, another LaunchError when a service
    refuses."""
    plan = cluster.plan
    try:
        services = Services(plan.workers[0].url, plan.nodes[0].admin, token)
        scenario = Scenario(plan.conductor.url, services, say)
        scenario.warm_up()
        for question in QUESTIONS[: settings.questions]:
            scenario.run(question)
    except Unreachable:
        cluster.check()  # rather say who died than which connection broke
        raise
    report = Report(
        not any(row.wrong for row in scenario.rows),
        this_machine(),
        services.model,
        tuple(scenario.rows),
    )
    if settings.json is not None:
        write_json(settings.json, report)
    print_table(report)
    return 0 if report.ok else 1
