"""From the bytes of a request to its structs; what does not fit is a 400 that names the field."""

from __future__ import annotations

from typing import cast

import msgspec
from aiohttp import web

from .errors import HttpError

_EXACT_FLOAT = 2**53


def decode_json(raw: bytes, kind: type) -> object:
    """Raises HttpError 400."""
    try:
        return cast(object, msgspec.json.decode(raw, type=kind))
    except msgspec.ValidationError as error:
        return _decode_leniently(raw, kind, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, "invalid_json", f"the body is no valid JSON: {error}") from error


def decode_query(request: web.Request, kind: type | None) -> object:
    """Raises HttpError 400. A route without a query struct ignores what is given."""
    if kind is None:
        return None
    values: dict[str, object] = {}
    for name in request.query:
        given = request.query.getall(name)
        if len(given) > 1:
            raise HttpError(
                400, "invalid_request", f"{name} is given {len(given)} times", field=name
            )
        values[name] = given[0]
    try:
        return cast(object, msgspec.convert(values, kind, strict=False))
    except msgspec.ValidationError as error:
        raise _invalid(error) from error


def _decode_leniently(raw: bytes, kind: type, first: msgspec.ValidationError) -> object:
    """JSON Schema calls 3.0 an integer, msgspec does not: try again with such numbers made so."""
    try:
        return cast(object, msgspec.convert(_with_integers(msgspec.json.decode(raw)), kind))
    except (msgspec.DecodeError, RecursionError):  # the same fault, or one further on
        raise _invalid(first) from first


def _with_integers(value: object) -> object:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    return value


def _invalid(error: msgspec.ValidationError) -> HttpError:
    """msgspec ends its text with the place, `… - at `$.field``."""
    text, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".") or None
    return HttpError(400, "invalid_request", f"{field}: {text}" if field else text, field=field)
