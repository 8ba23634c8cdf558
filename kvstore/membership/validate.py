"""Checks of a registration, the same for every kind of membership."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import Conflict, InvalidRequest
from .records import MAX_ID_CHARS, NODE_MARK, Record, kind_of

MAX_TTL_S = 3600.0
MAX_MEMBERS = 4096
MAX_FLOORS = 4096
"""Namespaces whose floors a membership keeps; stores' marks have what these leave."""


def check_registration(record: Record, ttl_s: float) -> None:
    if not 0 < ttl_s <= MAX_TTL_S:
        raise InvalidRequest(f"ttl_s={ttl_s!r}: give more than 0 and at most {MAX_TTL_S:g} seconds")
    if not record.id or len(record.id) > MAX_ID_CHARS or not record.id.isprintable():
        raise InvalidRequest(
            f"{kind_of(record)} id {record.id[:MAX_ID_CHARS]!r}: give 1 to {MAX_ID_CHARS} "
            f"printable characters"
        )
    if not record.instance:
        raise InvalidRequest(f"{kind_of(record)} {record.id}: its record names no instance")


def taken(record: Record, holder: Record, remaining_s: float) -> Conflict:
    return Conflict(
        f"{kind_of(record)} {record.id!r} is held by instance {holder.instance} for at least "
        f"{remaining_s:.1f} s more; stop it or choose another id"
    )


def check_room(count: int) -> None:
    if count >= MAX_MEMBERS:
        raise InvalidRequest(f"the membership holds {count} members, the most allowed")


def raised(
    floors: Mapping[str, int], namespaces: Collection[str], known: Mapping[str, int]
) -> dict[str, int]:
    """See `Membership.raise_floors`."""
    merged = dict(floors)
    for namespace in (*known, *namespaces):
        merged[namespace] = max(merged.get(namespace, 0), known.get(namespace, 0))
    for namespace in set(namespaces):
        merged[namespace] += 1
    _drop_marks(merged, len(merged) - MAX_FLOORS)
    if len(merged) > MAX_FLOORS:
        raise InvalidRequest(
            f"floors of {len(merged)} namespaces; the membership keeps {MAX_FLOORS}: stop the "
            "cluster and clear its membership and data directories to begin anew"
        )
    return merged


def _drop_marks(floors: dict[str, int], count: int) -> None:
    """A store without a mark believes nothing of what it has. So those that must not anyway, whose
    marks are odd, lose theirs first."""
    marks = [name for name in floors if name.startswith(NODE_MARK)]
    for mark in sorted(marks, key=lambda name: floors[name] % 2 == 0)[: max(count, 0)]:
        del floors[mark]
