"""Errors of HTTP answers: one exception, one table from the store's errors to a status, one
body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from ...errors import StoreError

_STATUS_BY_CODE = {
    "invalid_request": HTTPStatus.BAD_REQUEST,
    "invalid_settings": HTTPStatus.BAD_REQUEST,
    "layout_mismatch": HTTPStatus.CONFLICT,
    "conflict": HTTPStatus.CONFLICT,
    "out_of_space": HTTPStatus.SERVICE_UNAVAILABLE,
    "busy": HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "access_denied": HTTPStatus.FORBIDDEN,
}


class HttpError(Exception):
    """An answer other than success. Raise it in a handler; `field` names the part of the request
    that is at fault, where there is one."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retryable = retryable
        self.field = field
        self.headers = headers or {}


class ErrorDetail(msgspec.Struct, frozen=True):
    code: str
    message: str
    retryable: bool


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a service writes its errors: the type (for OpenAPI), and the value for one error."""

    body: type[msgspec.Struct]
    render: Callable[[HttpError], msgspec.Struct]


def _render(error: HttpError) -> ErrorBody:
    return ErrorBody(ErrorDetail(error.code, error.message, error.retryable))


DEFAULT_ERRORS = ErrorShape(ErrorBody, _render)


def error_response(error: HttpError, shape: ErrorShape) -> web.Response:
    response = web.Response(
        status=error.status,
        body=msgspec.json.encode(shape.render(error)),
        content_type="application/json",
        headers=error.headers,
    )
    if error.retryable:
        response.headers.setdefault("Retry-After", "1")
    return response


def from_store_error(error: StoreError) -> HttpError:
    status = _STATUS_BY_CODE.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return HttpError(status, error.code, str(error), retryable=error.retryable)
