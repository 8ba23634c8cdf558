"""Errors of the built-in engine.

EngineError
├── ModelError        a model cannot be loaded: names the file, what is wrong and the fix
└── InvalidRequest    a request's own fault: names the value, the bound and the fix
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of this component; `code` is stable, `retryable` says whether the same call may succeed
    later."""

    code = "engine_error"
    retryable = False


class ModelError(EngineError):
    code = "model_error"


class InvalidRequest(EngineError):
    code = "invalid_request"
