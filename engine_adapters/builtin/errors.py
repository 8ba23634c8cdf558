"""Errors of the built-in engine.

EngineError
├── ModelError        a model cannot be loaded: names the file, what is wrong and the fix
├── OutOfMemory       the KV pool asked for exceeds what the machine or device has
├── InvalidRequest    a request's own fault: names the value, the bound and the fix
├── Overloaded        a bounded queue is full; retry later                            (retryable)
└── EngineStopped     the engine is shutting down or has failed; ask another worker   (retryable)
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of this component; `code` is stable, `retryable` says whether the same call may succeed
    later."""

    code = "engine_error"
    retryable = False


class ModelError(EngineError):
    code = "model_error"


class OutOfMemory(EngineError):
    code = "out_of_memory"


class InvalidRequest(EngineError):
    code = "invalid_request"


class Overloaded(EngineError):
    code = "overloaded"
    retryable = True


class EngineStopped(EngineError):
    code = "engine_stopped"
    retryable = True
