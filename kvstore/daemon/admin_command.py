"""`moontide admin`: look into a running store and steer it; tables for people, JSON for scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from ..service import Size, default_token_file, guarded
from ..store import AuditReport, EntryPage, Explanation
from .admin import StoreReport
from .admin.bodies import ClearAnswer, ClearRequest, EvictAnswer, EvictRequest, TierName
from .admin_client import AdminClient, read_token

TIER = click.Choice(["dram", "nvme"])
DEFAULT_URL = "http://127.0.0.1:7421"


@click.group(help="Look into a running store daemon and steer it.")
def admin() -> None:
    pass


def _connected(command: Callable[..., int]) -> Callable[..., None]:
    """Adds the options every subcommand has. `command` gets a client and `as_json` before its own
    and returns the exit status; errors end in one line on stderr."""

    def run(
        url: str, token_file: Path | None, as_json: bool, timeout: float, **options: Any
    ) -> None:
        def body() -> int:
            path = token_file or default_token_file(os.environ.get("XDG_STATE_HOME"))
            client = AdminClient(url, read_token(path), timeout_s=timeout)
            return command(client, as_json, **options)

        sys.exit(guarded("admin", body))

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # click's own attribute
    for option in (
        click.option("--url", default=DEFAULT_URL, show_default=True, help="The store's --admin"),
        click.option("--token-file", type=click.Path(path_type=Path), help="The store's token"),
        click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON"),
        click.option(
            "--timeout", default=60.0, show_default=True, help="Seconds to wait for the answer"
        ),
    ):
        run = option(run)
    return run


@admin.command()
@_connected
def stats(client: AdminClient, as_json: bool) -> int:
    """Sizes and counters."""
    report = client.get("/v1/stats", {}, StoreReport)
    if as_json:
        return _print_json(report)
    tiers = _table(
        "tier", "capacity", "used", "pinned", "entries", "flushed", "hits", "misses", "evictions"
    )
    for name, tier in report.tiers.items():
        sizes = (tier.capacity_bytes, tier.used_bytes, tier.pinned_bytes)
        counts = (tier.entries, tier.flushed, tier.hits, tier.misses, tier.evictions)
        tiers.add_row(name, *map(_size, sizes), *map(str, counts))
    rest = _table("what", "value")
    for field in (
        "instance",
        "connections",
        "pins",
        "in_flight",
        "quarantined",
        "namespaces",
        "segments",
        "segments_granted",
        "refused_puts",
        "hbm_blocks",
    ):
        rest.add_row(field, str(getattr(report, field)))
    return _print_tables(tiers, rest)


@admin.command()
@_connected
@click.option("--namespace", help="Hex digest; empty: string entries")
@click.option("--tier", type=TIER, help="Only this tier's")
@click.option("--key-prefix", help="kv:HEX or s:TEXT")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--cursor", default="", help="Where the last page ended")
def blocks(
    client: AdminClient,
    as_json: bool,
    namespace: str | None,
    tier: str | None,
    key_prefix: str | None,
    limit: int,
    cursor: str,
) -> int:
    """What is stored, page by page."""
    query = {"limit": str(limit), "cursor": cursor}
    query |= {} if namespace is None else {"namespace": namespace}
    query |= {} if tier is None else {"tier": tier}
    query |= {} if key_prefix is None else {"key_prefix": key_prefix}
    page = client.get("/v1/blocks", query, EntryPage)
    if as_json:
        return _print_json(page)
    table = _table("key", "tier", "size", "namespace", "pins", "idle s")
    for entry in page.entries:
        table.add_row(
            entry.key,
            entry.tier,
            _size(entry.num_bytes),
            entry.namespace[:12],
            str(entry.pins),
            f"{entry.idle_s:.1f}",
        )
    status = _print_tables(table)
    if page.cursor:
        click.echo(f"more: --cursor {page.cursor}")
    return status


@admin.command()
@_connected
@click.argument("key")
def explain(client: AdminClient, as_json: bool, key: str) -> int:
    """Why KEY (kv:HEX or s:TEXT) is here or not."""
    answer = client.get("/v1/explain", {"key": key}, Explanation)
    if as_json:
        return _print_json(answer)
    click.echo(f"{answer.key}: {answer.state}. {answer.reason}")
    return 0


@admin.command()
@_connected
@click.option("--namespace", help="Hex digest; empty: string entries")
@click.option("--tier", type=TIER, help="Only this tier's copies; none: every tier's")
@click.option("--key", "keys", multiple=True, help="kv:HEX or s:TEXT; may be repeated")
@click.option("--key-prefix", help="kv:HEX or s:TEXT")
@click.option("--bytes", "num_bytes", type=Size.parse, metavar="SIZE", help="Stop after so much")
@click.option("--older-than-s", type=click.FloatRange(0), help="Idle for at least so long")
@click.option("--dry-run", is_flag=True, help="Only say what would go")
def evict(
    client: AdminClient,
    as_json: bool,
    namespace: str | None,
    tier: TierName | None,
    keys: tuple[str, ...],
    key_prefix: str | None,
    num_bytes: int | None,
    older_than_s: float | None,
    dry_run: bool,
) -> int:
    """Drop unpinned entries that meet every condition given."""
    request = EvictRequest(
        tier=tier,
        namespace=namespace,
        keys=keys or None,
        key_prefix=key_prefix,
        bytes=num_bytes,
        older_than_s=older_than_s,
        dry_run=dry_run,
    )
    answer = client.post("/v1/evict", request, EvictAnswer)
    if as_json:
        return _print_json(answer)
    table = _table("tier", "entries", "size", "tokens")
    for name, evicted in answer.tiers.items():
        table.add_row(name, str(evicted.entries), _size(evicted.num_bytes), str(evicted.tokens))
    return _print_tables(table)


@admin.command()
@_connected
@click.option("--namespace", help="Hex digest; empty: string entries; not given: everything")
@click.option("--dry-run", is_flag=True, help="Only say how many would go")
def clear(client: AdminClient, as_json: bool, namespace: str | None, dry_run: bool) -> int:
    """Remove a namespace, all string entries, or everything."""
    answer = client.post("/v1/clear", ClearRequest(namespace, dry_run), ClearAnswer)
    if as_json:
        return _print_json(answer)
    click.echo(f"{answer.entries} entries {'would be removed' if answer.dry_run else 'removed'}")
    return 0


@admin.command()
@_connected
def audit(client: AdminClient, as_json: bool) -> int:
    """Walk everything and compare with the accounts; status 1 when they differ."""
    report = client.post("/v1/audit", {}, AuditReport)
    status = 1 if report.differences else 0
    if as_json:
        _print_json(report)
        return status
    click.echo(
        f"{report.entries} entries, {_size(report.used_bytes)}, {report.pins} pins, "
        f"{report.in_flight} in flight, {report.quarantined} in quarantine: "
        + ("accounts differ" if status else "accounts agree")
    )
    for difference in report.differences:
        click.echo(f"  {difference}")
    return status


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print_tables(*tables: Table) -> int:
    console = Console()
    for table in tables:
        console.print(table)
    return 0


def _print_json(answer: object) -> int:
    click.echo(msgspec.json.encode(answer).decode())
    return 0


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.4g} {unit}"
