"""Errors of the store.

StoreError
├── InvalidRequest      the call itself is wrong: names the value, the bound and the fix
│   └── LayoutMismatch  two ends disagree on layout, block size or key version
├── Conflict            `if_exists="error"` met an entry; a name is already taken
├── OutOfSpace          nothing can be freed now; retry later                         (retryable)
├── Busy                a bounded queue is full; retry later                          (retryable)
├── StoreUnavailable    the daemon is away, or another one now answers               (retryable)
│   └── ForkedClient    a client used in a forked child
├── StoreTimeout        the deadline passed                                          (retryable)
├── Corrupt             bytes do not match their checksum: never handed out
├── ViewExpired         a view outlived its pin
└── AccessDenied        token missing or wrong
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of this component. `code` goes over the wire; `retryable` says whether the same call may
    succeed later."""

    code = "store_error"
    retryable = False


class InvalidRequest(StoreError):
    code = "invalid_request"


class LayoutMismatch(InvalidRequest):
    code = "layout_mismatch"


class Conflict(StoreError):
    code = "conflict"


class OutOfSpace(StoreError):
    code = "out_of_space"
    retryable = True


class Busy(StoreError):
    code = "busy"
    retryable = True


class StoreUnavailable(StoreError):
    code = "unavailable"
    retryable = True


class ForkedClient(StoreUnavailable):
    code = "forked_client"
    retryable = False


class StoreTimeout(StoreError):
    code = "timeout"
    retryable = True


class Corrupt(StoreError):
    code = "corrupt"


class ViewExpired(StoreError):
    code = "view_expired"


class AccessDenied(StoreError):
    code = "access_denied"


ERRORS_BY_CODE: dict[str, type[StoreError]] = {
    error.code: error
    for error in (
        StoreError,
        InvalidRequest,
        LayoutMismatch,
        Conflict,
        OutOfSpace,
        Busy,
        StoreUnavailable,
        ForkedClient,
        StoreTimeout,
        Corrupt,
        ViewExpired,
        AccessDenied,
    )
}
"""The one table between exceptions and wire codes; a test proves it total."""
