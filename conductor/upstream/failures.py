"""Why a call to a worker came to nothing."""

from __future__ import annotations

import enum

import msgspec


class Failure(enum.StrEnum):
    REFUSED = "refused"  # the request is at fault: no other worker would take it
    BUSY = "busy"  # 429 or 503: another may take it
    BROKEN = "broken"  # it answered, but not as agreed
    UNREACHABLE = "unreachable"  # no connection, or it broke
    SILENT = "silent"  # no progress until the deadline, or lost


class CallFailed(Exception):
    """A call came to nothing; `field` names what the worker found at fault in the request."""

    def __init__(self, failure: Failure, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.field = field


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str = ""
    param: str | None = None


class _ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail = ErrorDetail()


_ERRORS = msgspec.json.Decoder(_ErrorBody)


def failure_of(status: int, raw: bytes) -> CallFailed:
    """From an answer that is no success, and its body."""
    try:
        detail = _ERRORS.decode(raw).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        detail = ErrorDetail(raw[:200].decode("utf-8", "replace"))
    told = detail.message or "no reason given"
    if status in (429, 503):
        return CallFailed(Failure.BUSY, f"the worker answered {status}: {told}")
    if status in (400, 413, 422):
        return CallFailed(Failure.REFUSED, told, field=detail.param)
    return CallFailed(Failure.BROKEN, f"the worker answered {status}: {told}")


def text_of(error: BaseException) -> str:
    return str(error) or type(error).__name__
