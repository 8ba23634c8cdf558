"""OpenAPI 3.1 of a list of routes, from the structs they decode and answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from .errors import ErrorShape
from .routes import AnyRoute, Auth, decodes_empty

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]+)?\}")
_SECURED = {"bearer": []}  # type: dict[str, list[str]]


def openapi_document(
    routes: Sequence[AnyRoute], *, title: str, version: str, errors: ErrorShape
) -> dict[str, Any]:
    """The whole document, ready for JSON."""
    kinds = _described_types(routes, errors)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        operation = _operation(route, schema_of, components, id(errors.body))
        paths.setdefault(path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described_types(routes: Sequence[AnyRoute], errors: ErrorShape) -> list[Any]:
    kinds: dict[int, Any] = {id(errors.body): errors.body}
    for route in routes:
        for kind in (route.request, route.query, route.response, route.stream):
            if kind is not None:
                kinds[id(kind)] = kind
    return list(kinds.values())


def _operation(
    route: AnyRoute, schema_of: dict[int, Any], components: dict[str, Any], error_id: int
) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.response is not None:
        content[route.media] = {"schema": schema_of[id(route.response)]}
    if route.stream is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if not content:
        content[route.media] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    for status, description in sorted(_failures(route).items()):
        responses[str(status)] = {
            "description": description,
            "content": {"application/json": {"schema": schema_of[error_id]}},
        }
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": _parameters(route, schema_of, components),
        "responses": responses,
    }
    if route.request is not None:
        operation["requestBody"] = {
            "required": not decodes_empty(route.request),
            "content": {"application/json": {"schema": schema_of[id(route.request)]}},
        }
    if route.auth is Auth.TOKEN:
        operation["security"] = [_SECURED]
    elif route.auth is not Auth.OPEN:
        operation["security"] = [{}, _SECURED]
    return operation


def _failures(route: AnyRoute) -> dict[int, str]:
    failures = {
        400: "The request is malformed",
        403: "Host or Origin is refused",
        404: "There is no such thing",
        405: "The method is not allowed here",
        500: "An error of ours; it is in the log",
        503: "Too busy or shutting down; retry later",
    }
    if route.auth is not Auth.OPEN:
        failures[401] = "The token is missing or wrong"
    if route.request is not None:
        failures |= {
            408: "The body did not arrive in time",
            413: "The body is too large",
            415: "The body is not JSON",
        }
    return failures | dict(route.errors)


def _parameters(
    route: AnyRoute, schema_of: dict[int, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _PARAMETER.findall(route.path)
    ]
    if route.query is not None:
        struct = _resolve(schema_of[id(route.query)], components)
        required = struct.get("required", [])
        for name, schema in struct.get("properties", {}).items():
            parameters.append(
                {"name": name, "in": "query", "required": name in required, "schema": schema}
            )
    return parameters


def _resolve(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = components[reference.rsplit("/", 1)[1]]
    return found


def _operation_id(route: AnyRoute) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"by_\1", route.path)) or ["root"]
    return "_".join([route.method.lower(), *words])
