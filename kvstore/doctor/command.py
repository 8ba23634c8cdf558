"""`moontide doctor`: what this machine has, beside what a store asks of it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Annotated

import click
import msgspec
from rich.console import Console
from rich.table import Table

from ..daemon.settings import StoreSettings
from ..membership import opener
from ..service import guarded, load_command_settings, setting_option, settings_of
from .checks import examine
from .host import LocalHost
from .trials import LocalTrials
from .types import Case, Finding, Report, Status

_STORE = "store"
_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


class ExaminedSettings(StoreSettings, frozen=True, kw_only=True):
    """A store's, where even the directory may be left out."""

    data_dir: Annotated[
        Path, msgspec.Meta(description="Directory the store is to have, made by the store")
    ] = Path(".")


def examine_machine(settings: StoreSettings) -> Report:
    case = Case(LocalHost(), LocalTrials(), settings)
    findings = tuple(examine(case))
    return Report(
        ok=all(finding.status is not Status.FAIL for finding in findings),
        machine=f"{platform.node()} ({platform.machine()}, Linux {platform.release()})",
        version=metadata.version("moontide"),
        findings=findings,
    )


def _doctor(config: Path | None, as_json: bool, **flags: str | None) -> None:
    given = {name: text for name, text in flags.items() if text is not None}

    def body() -> int:
        settings = load_command_settings(
            _STORE, ExaminedSettings, config_file=config, environ=os.environ, flags=given
        )
        opener(settings.cluster)  # refused in the store's words
        report = examine_machine(settings)
        if as_json:
            click.echo(msgspec.json.encode(report).decode())
        else:
            _print(report)
        return 0 if report.ok else 1

    sys.exit(guarded("doctor", body))


def _print(report: Report) -> None:
    console = Console()
    console.print(_table(report.findings))
    for finding in report.findings:
        if finding.fix:
            click.echo(f"{finding.status.value} {finding.check}: {finding.fix}")
    counts = {status: sum(f.status is status for f in report.findings) for status in Status}
    told = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    click.echo(f"{report.machine}, moontide {report.version}: {told}")


def _table(findings: Iterable[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("", "check", "value", "needed"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        status = f"[{_COLOURS[finding.status]}]{finding.status.value}[/]"
        table.add_row(status, finding.check, finding.value, finding.needed)
    return table


doctor = click.Command(
    "doctor",
    callback=_doctor,
    params=[
        *(
            setting_option(_STORE, setting)
            for setting in sorted(settings_of(ExaminedSettings), key=lambda s: s.name)
        ),
        click.Option(["--config"], type=click.Path(path_type=Path), help="The store's TOML file"),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the report as JSON"),
    ],
    help="Check this machine for a store with these settings: what it has, what is needed, and the "
    "fix. Takes the options, file and environment of `moontide store`; changes nothing; status 1 "
    "when something would keep the store from starting or working.",
)
