"""Subcommands that change what a store holds or does."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

import click

from ...errors import InvalidRequest
from ...service import Seconds, human_size, size_flag
from ...store import MAX_TTL_SECONDS
from ..admin.bodies import (
    ClearAnswer,
    ClearRequest,
    ConfigAnswer,
    ConfigRequest,
    DrainAnswer,
    DrainRequest,
    EvictAnswer,
    EvictRequest,
    FloorAnswer,
    FloorRequest,
    PinAnswer,
    PinRequest,
    RemoveAnswer,
    TierName,
    UnpinAnswer,
    UnpinRequest,
)
from ..admin.keys import parse_key
from ..admin_client import AdminClient
from .copying import to_node
from .frame import TIER, connected, print_json, print_tables, table


@click.command()
@connected
@click.option("--namespace", help="Hex digest; empty: string entries")
@click.option("--tier", type=TIER, help="Only this tier's copies; none: every tier's")
@click.option("--key", "keys", multiple=True, help="kv:HEX or s:TEXT; may be repeated")
@click.option("--key-prefix", help="kv:HEX or s:TEXT")
@click.option("--bytes", "num_bytes", type=size_flag, metavar="SIZE", help="Stop after so much")
@click.option("--older-than-s", type=Seconds(0), help="Idle for at least so long")
@click.option("--all", "everything", is_flag=True, help="Without any condition")
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
    everything: bool,
    dry_run: bool,
) -> int:
    """Drop unpinned entries that meet every condition given."""
    conditions = (namespace, keys or None, key_prefix, num_bytes, older_than_s)
    if (conditions.count(None) < len(conditions)) == everything and not dry_run:
        raise InvalidRequest("give conditions or, to drop all that is not pinned, --all")
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
        return print_json(answer)
    rows = table("tier", "entries", "size", "tokens")
    for name, evicted in answer.tiers.items():
        rows.add_row(name, str(evicted.entries), human_size(evicted.num_bytes), str(evicted.tokens))
    return print_tables(rows)


@click.command()
@connected
@click.argument("key")
@click.option("--namespace", help="Hex digest, of a block that only nodes have which are away now")
def remove(client: AdminClient, as_json: bool, key: str, namespace: str | None) -> int:
    """Remove KEY (kv:HEX or s:TEXT), all shards of a block, at every node."""
    parse_key(key)  # no key, no path
    query = {} if namespace is None else {"namespace": namespace}
    answer = client.delete(f"/v1/blocks/{quote(key, safe='')}", query, RemoveAnswer)
    if as_json:
        return print_json(answer)
    click.echo(f"{answer.removed} entries removed")
    return 0


@click.command()
@connected
@click.option("--namespace", help="Hex digest; empty: string entries; not given: everything")
@click.option("--dry-run", is_flag=True, help="Only say how many would go here")
@click.option(
    "--nodes",
    type=click.Choice(["all", "this"]),
    default="all",
    show_default=True,
    help="Of the cluster, or the store's own",
)
def clear(
    client: AdminClient,
    as_json: bool,
    namespace: str | None,
    dry_run: bool,
    nodes: Literal["all", "this"],
) -> int:
    """Remove a namespace, all string entries, or everything."""
    answer = client.post("/v1/clear", ClearRequest(namespace, dry_run, nodes), ClearAnswer)
    if as_json:
        return print_json(answer)
    click.echo(f"{answer.entries} entries {'would be removed' if answer.dry_run else 'removed'}")
    return 0


@click.command()
@connected
@click.option("--namespace", help="Hex digest")
@click.option("--weights-id", help="All namespaces opened there with these weights")
@click.option("--salt", help="All namespaces opened there of this tenant")
def floor(
    client: AdminClient,
    as_json: bool,
    namespace: str | None,
    weights_id: str | None,
    salt: str | None,
) -> int:
    """Make all that namespaces hold a miss, in the whole cluster, at once."""
    answer = client.post("/v1/floor", FloorRequest(namespace, weights_id, salt), FloorAnswer)
    if as_json:
        return print_json(answer)
    for digest, number in answer.floors.items():
        click.echo(f"floor {number}: {digest}")
    click.echo(f"in force at {', '.join(answer.in_force)}")
    if answer.away:
        click.echo(f"away, in force when they are back: {', '.join(answer.away)}")
    return 0


@click.command()
@connected
@click.argument("keys", nargs=-1, required=True)
@click.option(
    "--ttl-s",
    type=Seconds(0, MAX_TTL_SECONDS, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds until they are unpinned again",
)
def pin(client: AdminClient, as_json: bool, keys: tuple[str, ...], ttl_s: float) -> int:
    """Keep KEYS (kv:HEX or s:TEXT) in DRAM for a while."""
    answer = client.post("/v1/pin", PinRequest(keys, ttl_s), PinAnswer)
    if as_json:
        return print_json(answer)
    click.echo(
        f"{answer.entries} entries, {human_size(answer.num_bytes)}, pinned as {answer.pin or '-'}"
    )
    for key in answer.missing:
        click.echo(f"not in DRAM: {key}")
    return 0


@click.command()
@connected
@click.argument("pin", required=False)
@click.option("--all", "everything", is_flag=True, help="Every pin of operators")
def unpin(client: AdminClient, as_json: bool, pin: str | None, everything: bool) -> int:
    """End PIN, as `pin` or `pins` showed it."""
    if (pin is None) != everything:
        raise InvalidRequest("give a PIN or --all")
    answer = client.post("/v1/unpin", UnpinRequest(pin), UnpinAnswer)
    if as_json:
        return print_json(answer)
    click.echo(f"{answer.unpinned} pins ended")
    return 0


@click.command()
@connected
@to_node
@click.option("--end", is_flag=True, help="Take writes again")
def drain(client: AdminClient, as_json: bool, to: str | None, seconds: float, end: bool) -> int:
    """Take no more writes; bring what is there to disk, and what others lack to them."""
    if end:
        answer = client.post("/v1/undrain", {}, DrainAnswer)
    else:
        answer = client.post("/v1/drain", DrainRequest(to, seconds), DrainAnswer)
    if as_json:
        return print_json(answer)
    if not answer.draining:
        click.echo("writes are taken")
        return 0
    click.echo(
        f"draining; {'all' if answer.flushed else 'not all'} entries are on disk, "
        f"{answer.in_flight} are still being written; {answer.copied} went to other nodes"
    )
    if answer.left:
        click.echo(f"{answer.left} are in DRAM here and nowhere else: {answer.reason}")
    return 0


@click.command()
@connected
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="May be repeated")
def config(client: AdminClient, as_json: bool, changes: tuple[str, ...]) -> int:
    """Settings in force; with --set changed until the next start."""
    wrong = [change for change in changes if "=" not in change]
    if wrong:
        raise InvalidRequest(f"--set {wrong[0]}: write NAME=VALUE")
    if changes:
        values = dict(change.split("=", 1) for change in changes)
        answer = client.patch("/v1/config", ConfigRequest(values), ConfigAnswer)
    else:
        answer = client.get("/v1/config", {}, ConfigAnswer)
    if as_json:
        return print_json(answer)
    for name, value in sorted(answer.settings.items()):
        click.echo(f"{name} = {value}{'  (can change)' if name in answer.changeable else ''}")
    return 0
