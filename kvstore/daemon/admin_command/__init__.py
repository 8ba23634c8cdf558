"""`moontide admin`: look into a running store and steer it; tables for people, JSON for scripts."""

from __future__ import annotations

import click

from . import copying, looking, steering

__all__ = ["admin"]


@click.group(help="Look into a running store daemon and steer it.")
def admin() -> None:
    pass


for _command in (
    looking.stats,
    looking.blocks,
    looking.explain,
    looking.pins,
    looking.tenants,
    looking.cluster,
    looking.audit,
    copying.copy,
    copying.move,
    steering.evict,
    steering.remove,
    steering.clear,
    steering.floor,
    steering.pin,
    steering.unpin,
    steering.drain,
    steering.config,
):
    admin.add_command(_command)
