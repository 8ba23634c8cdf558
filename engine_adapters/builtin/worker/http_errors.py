"""The engine's errors over HTTP."""

from __future__ import annotations

from moontide.kvstore.service import HttpError

from ..errors import EngineError, EngineStopped, InvalidRequest, Overloaded

_STATUS = {InvalidRequest: 400, Overloaded: 503, EngineStopped: 503}


def http_error(error: EngineError) -> HttpError:
    """The one table from the engine's errors to HTTP statuses."""
    status = _STATUS.get(type(error), 500)
    return HttpError(status, error.code, str(error), retryable=error.retryable)
