"""What a put may ask for."""

from __future__ import annotations

from typing import NamedTuple, get_args

from .. import wire
from ..errors import InvalidRequest
from ..types import IfExists
from .deadline import check_timeout


class PutOptions(NamedTuple):
    """The last fields, in their order, of every message that puts string entries."""

    if_exists: IfExists = "keep"
    ttl_s: float | None = None
    soft_pin: bool = False
    replicas: int = 1


_USUAL = {each: PutOptions(each) for each in get_args(IfExists)}


def put_options(
    if_exists: IfExists, ttl_s: float | None, *, soft_pin: bool, replicas: int
) -> PutOptions:
    """Raises InvalidRequest on a value outside its bounds."""
    if ttl_s is None and soft_pin is False and replicas == 1 and type(if_exists) is str:
        usual = _USUAL.get(if_exists)
        if usual is not None:
            return usual
    if if_exists not in get_args(IfExists):
        raise InvalidRequest(
            f"if_exists is {if_exists!r}; give one of {', '.join(get_args(IfExists))}"
        )
    check_replicas(replicas)
    if not isinstance(soft_pin, bool):
        raise InvalidRequest(f"soft_pin is {soft_pin!r}; give True or False")
    if ttl_s is not None:
        ttl_s = check_timeout(ttl_s, "ttl_s")
    return PutOptions(if_exists, ttl_s, soft_pin, replicas)


def check_replicas(replicas: int) -> None:
    if not isinstance(replicas, int) or not 1 <= replicas <= wire.MAX_REPLICAS:
        raise InvalidRequest(f"replicas is {replicas!r}; it must lie in 1..{wire.MAX_REPLICAS}")
