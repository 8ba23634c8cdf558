"""Subcommands that look and change nothing."""

from __future__ import annotations

import click

from ...service import human_size
from ...store import AuditReport, EntryPage, Explanation
from ..admin import StoreReport
from ..admin.bodies import PinsAnswer, TenantsAnswer
from ..admin_client import AdminClient
from .frame import TIER, connected, print_json, print_tables, table


@click.command()
@connected
def stats(client: AdminClient, as_json: bool) -> int:
    """Sizes and counters."""
    report = client.get("/v1/stats", {}, StoreReport)
    if as_json:
        return print_json(report)
    tiers = table(
        "tier", "capacity", "used", "pinned", "entries", "flushed", "hits", "misses", "evictions"
    )
    for name, tier in report.tiers.items():
        sizes = (tier.capacity_bytes, tier.used_bytes, tier.pinned_bytes)
        counts = (tier.entries, tier.flushed, tier.hits, tier.misses, tier.evictions)
        tiers.add_row(name, *map(human_size, sizes), *map(str, counts))
    rest = table("what", "value")
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
    return print_tables(tiers, rest)


@click.command()
@connected
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
        return print_json(page)
    rows = table("key", "tier", "size", "namespace", "pins", "idle s")
    for entry in page.entries:
        rows.add_row(
            entry.key,
            entry.tier,
            human_size(entry.num_bytes),
            entry.namespace[:12],
            str(entry.pins),
            f"{entry.idle_s:.1f}",
        )
    status = print_tables(rows)
    if page.cursor:
        click.echo(f"more: --cursor {page.cursor}")
    return status


@click.command()
@connected
@click.argument("key")
def explain(client: AdminClient, as_json: bool, key: str) -> int:
    """Why KEY (kv:HEX or s:TEXT) is here or not."""
    answer = client.get("/v1/explain", {"key": key}, Explanation)
    if as_json:
        return print_json(answer)
    click.echo(f"{answer.key}: {answer.state}. {answer.reason}")
    return 0


@click.command()
@connected
def audit(client: AdminClient, as_json: bool) -> int:
    """Walk everything and compare with the accounts; status 1 when they differ."""
    report = client.post("/v1/audit", {}, AuditReport)
    status = 1 if report.differences else 0
    if as_json:
        print_json(report)
        return status
    click.echo(
        f"{report.entries} entries, {human_size(report.used_bytes)}, {report.pins} pins, "
        f"{report.in_flight} in flight, {report.quarantined} in quarantine: "
        + ("accounts differ" if status else "accounts agree")
    )
    for difference in report.differences:
        click.echo(f"  {difference}")
    return status


@click.command()
@connected
def pins(client: AdminClient, as_json: bool) -> int:
    """What operators keep pinned."""
    answer = client.get("/v1/pins", {}, PinsAnswer)
    if as_json:
        return print_json(answer)
    rows = table("pin", "entries", "size", "seconds left", "first key")
    for pin in answer.pins:
        rows.add_row(
            pin.pin,
            str(pin.entries),
            human_size(pin.num_bytes),
            f"{pin.seconds_left:.0f}",
            pin.keys[0],
        )
    return print_tables(rows)


@click.command()
@connected
def tenants(client: AdminClient, as_json: bool) -> int:
    """What the blocks of each tenant hold, the largest first."""
    answer = client.get("/v1/tenants", {}, TenantsAnswer)
    if as_json:
        return print_json(answer)
    rows = table("tenant", "entries", "DRAM", "cap", "share", "namespaces")
    for usage in answer.tenants:
        sizes = (usage.dram_bytes, usage.cap_bytes, usage.share_bytes)
        shown = ["none" if each is None else human_size(each) for each in sizes]
        rows.add_row(usage.tenant, str(usage.entries), *shown, str(len(usage.namespaces)))
    return print_tables(rows)


@click.command()
@connected
def cluster(client: AdminClient, as_json: bool) -> int:
    """The stores of the cluster, as this one sees them; status 1 while one is away."""
    report = client.get("/v1/stats", {}, StoreReport)
    known = report.peers.known if report.peers is not None else []
    up = report.peers.up if report.peers is not None else []
    states = {report.instance.partition("/")[0]: "draining" if report.draining else "this store"}
    states |= {node: "up" if node in up else "away" for node in known}
    if as_json:
        print_json(states)
    else:
        rows = table("node", "state")
        for node, state in states.items():
            rows.add_row(node, state)
        print_tables(rows)
    return 1 if "away" in states.values() else 0
