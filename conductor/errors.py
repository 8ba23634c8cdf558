"""Errors of the Conductor, as its HTTP clients see them.

HttpError (kvstore.service)
└── ConductorError
    ├── BadRequest         400  names the field, its value and what is allowed
    │   ├── PromptTooLong  400  names both token counts
    │   └── NotSupported   400  names the parameter
    ├── ModelUnknown       404  names the models there are
    ├── Overloaded         429  somebody could take it later                      (retryable)
    ├── NoWorker           503  nobody is there to take it                        (retryable)
    ├── WorkerFailed       502  the worker answered, but not as agreed
    ├── WorkerLost         503  the worker went away, or made no progress         (retryable)
    └── TookTooLong        504  not complete at its deadline                      (retryable)
"""

from __future__ import annotations

import math

import msgspec

from moontide.kvstore.service import ErrorShape, HttpError


class ConductorError(HttpError):
    """A subclass is a status, a stable code and whether the same request may succeed later."""

    status_code = 500
    error_code = "internal"
    is_retryable = False

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: float | None = None
    ) -> None:
        headers = {}
        if retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(
            self.status_code,
            self.error_code,
            message,
            retryable=self.is_retryable,
            field=field,
            headers=headers,
        )


class BadRequest(ConductorError):
    status_code = 400
    error_code = "invalid_request"


class PromptTooLong(BadRequest):
    error_code = "context_length_exceeded"


class NotSupported(BadRequest):
    error_code = "unsupported_parameter"


class ModelUnknown(ConductorError):
    status_code = 404
    error_code = "model_not_found"


class Overloaded(ConductorError):
    status_code = 429
    error_code = "overloaded"
    is_retryable = True


class NoWorker(ConductorError):
    status_code = 503
    error_code = "no_worker"
    is_retryable = True


class WorkerFailed(ConductorError):
    status_code = 502
    error_code = "worker_failed"


class WorkerLost(ConductorError):
    status_code = 503
    error_code = "worker_lost"
    is_retryable = True


class TookTooLong(ConductorError):
    status_code = 504
    error_code = "deadline_exceeded"
    is_retryable = True


class OpenAIErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str
    retryable: bool


class OpenAIError(msgspec.Struct, frozen=True):
    """The body of every answer that is no success, and of an error within a stream."""

    error: OpenAIErrorDetail


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(error: HttpError) -> OpenAIError:
    """Any HTTP error in the shape that OpenAI's clients read."""
    kind = _TYPES.get(
        error.status, "invalid_request_error" if error.status < 500 else "server_error"
    )
    return OpenAIError(
        OpenAIErrorDetail(error.message, kind, error.field, error.code, error.retryable)
    )


OPENAI_ERRORS = ErrorShape(OpenAIError, openai_error)
