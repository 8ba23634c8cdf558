"""Subcommands that have other stores take what lies in this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ...errors import InvalidRequest
from ...service import Seconds, human_size
from ..admin.bodies import CopyAnswer, CopyRequest
from ..admin_client import AdminClient
from .frame import connected, print_json

LONGEST_SECONDS = 3600


def to_node(command: Callable[..., int]) -> Callable[..., int]:
    """Adds where to, and for how long at most."""
    for option in (
        click.option("--to", metavar="NODE", help="Node id; none: whoever has most room"),
        click.option(
            "--seconds",
            type=Seconds(0, LONGEST_SECONDS, min_open=True),
            default=30.0,
            show_default=True,
            help="What is not copied by then is left",
        ),
    ):
        command = option(command)
    return command


def _chosen(command: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.option("--namespace", help="Hex digest; empty: string entries"),
        click.option("--key", "keys", multiple=True, help="kv:HEX or s:TEXT; may be repeated"),
        click.option("--key-prefix", help="kv:HEX or s:TEXT"),
        click.option("--all", "everything", is_flag=True, help="Without any condition"),
        click.option("--dry-run", is_flag=True, help="Only say how many are meant"),
    ):
        command = option(command)
    return command


@click.command()
@connected
@to_node
@_chosen
def copy(client: AdminClient, as_json: bool, **chosen: Any) -> int:
    """Have another node take copies of entries that meet every condition given."""
    return _run(client, "/v1/copy", as_json, **chosen)


@click.command()
@connected
@to_node
@_chosen
def move(client: AdminClient, as_json: bool, **chosen: Any) -> int:
    """As copy; what the other node is known to hold ends here."""
    return _run(client, "/v1/move", as_json, **chosen)


def _run(
    client: AdminClient,
    path: str,
    as_json: bool,
    *,
    to: str | None,
    seconds: float,
    namespace: str | None,
    keys: tuple[str, ...],
    key_prefix: str | None,
    everything: bool,
    dry_run: bool,
) -> int:
    conditions = (namespace, keys or None, key_prefix)
    if (conditions.count(None) < len(conditions)) == everything:
        raise InvalidRequest("give conditions or, to mean all that is there, --all")
    request = CopyRequest(to, namespace, keys or None, key_prefix, seconds, dry_run)
    answer = client.post(path, request, CopyAnswer)
    if as_json:
        return print_json(answer)
    if answer.dry_run:
        click.echo(f"{answer.left} entries, {human_size(answer.num_bytes)}, are meant")
        return 0
    for node, entries in answer.nodes.items():
        click.echo(f"{node} has {entries}")
    click.echo(f"{human_size(answer.num_bytes)} in all; {answer.ended_here} entries ended here")
    if answer.left:
        click.echo(f"{answer.left} are left: {answer.reason}")
    return 1 if answer.left else 0
