"""Setting types that have a default and, by digest, exceptions from it: `VALUE[,DIGEST=VALUE…]`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..service import Size
from ..store import AdmissionRule, AdmissionRules, TenantBytes

NAMESPACE_DIGITS = 64
TENANT_DIGITS = 32
MAX_EXCEPTIONS = 4096
_DEPTH = re.compile(r"depth:([1-9][0-9]{0,5})")
_T = TypeVar("_T")


class AdmissionSetting(NamedTuple):
    """`second-use`, or with rules for single namespaces: `all,0123…=depth:8`."""

    text: str
    rules: AdmissionRules

    @classmethod
    def parse(cls, text: str) -> AdmissionSetting:
        default, of_namespace = _parse(text, _parse_rule, NAMESPACE_DIGITS, "namespace")
        return cls(text.replace(" ", ""), AdmissionRules(default, of_namespace))

    def __str__(self) -> str:
        return self.text


class TenantSizes(NamedTuple):
    """`none`, `8GiB`, or with sizes for single tenants: `none,0123…=16GiB`."""

    text: str
    sizes: TenantBytes

    @classmethod
    def parse(cls, text: str) -> TenantSizes:
        default, of_tenant = _parse(text, _parse_size, TENANT_DIGITS, "tenant")
        return cls(text.replace(" ", ""), TenantBytes(default, of_tenant))

    def __str__(self) -> str:
        return self.text


def _parse(
    text: str, parse_value: Callable[[str], _T], num_digits: int, what: str
) -> tuple[_T, dict[str, _T]]:
    first, *exceptions = [part.strip() for part in text.split(",")]
    if len(exceptions) > MAX_EXCEPTIONS:
        raise ValueError(f"{len(exceptions)} exceptions; at most {MAX_EXCEPTIONS}")
    default = parse_value(first)
    values: dict[str, _T] = {}
    for exception in exceptions:
        digest, _, value = exception.partition("=")
        if not re.fullmatch(f"[0-9a-f]{{{num_digits}}}", digest):
            raise ValueError(
                f"{exception[:80]!r}: write DIGEST=VALUE with the {num_digits} hex digits of a "
                f"{what}, as /v1/tenants shows them"
            )
        values[digest] = parse_value(value)
    return default, values


def _parse_rule(text: str) -> AdmissionRule:
    if text == "all":
        return AdmissionRule("all")
    if text == "second-use":
        return AdmissionRule("second-use")
    depth = _DEPTH.fullmatch(text)
    if depth is None:
        raise ValueError(
            f"{text[:80]!r} is no rule: write all, second-use or depth:BLOCKS (1 or more)"
        )
    return AdmissionRule("depth", int(depth[1]))


def _parse_size(text: str) -> int | None:
    return None if text == "none" else int(Size.parse(text))
