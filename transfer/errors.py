"""Errors of the transfer component.

TransferError
├── InvalidRequest           the call itself is wrong: names the value, the bound and the fix
├── Busy                     a bound is reached; retry when something has ended          (retryable)
├── Unavailable              the peer cannot be reached or went away                     (retryable)
│   └── Unreachable          no connection came about: nothing was sent                  (retryable)
├── Malformed                bytes that are no frame of ours; ends the connection
├── Refused                  the other side says no
│   ├── AccessDenied         token missing or wrong
│   ├── OtherInstance        another life of the process answers at this address
│   ├── VersionMismatch      no wire version in common
│   ├── UnknownSegment       not registered (any more)
│   ├── OutOfRange           the span leaves its segment
│   ├── ReadOnly             a write into something that is no landing segment
│   └── NoRoute              nobody said where this instance is
├── SegmentUnavailable       the memory asked for cannot be had (names asked and available)
├── HandoverRefused          descriptors or a mapping did not arrive as announced
└── FileFailed               a file could not be opened, read, written or made durable (has errno)

A slice's failure reason is `code`, or `code: message`; the handshake sends the same codes.
"""

from __future__ import annotations


class TransferError(Exception):
    """Base of this component; `code` is stable, `retryable` says whether the same call may succeed
    later."""

    code = "transfer_error"
    retryable = False

    @property
    def reason(self) -> str:
        return f"{self.code}: {self}"


class InvalidRequest(TransferError):
    code = "invalid_request"


class Busy(TransferError):
    code = "busy"
    retryable = True


class Unavailable(TransferError):
    code = "unavailable"
    retryable = True


class Unreachable(Unavailable):
    code = "unreachable"


class Malformed(TransferError):
    code = "malformed"


class Refused(TransferError):
    code = "refused"


class AccessDenied(Refused):
    code = "access_denied"


class OtherInstance(Refused):
    code = "other_instance"


class VersionMismatch(Refused):
    code = "version_mismatch"


class UnknownSegment(Refused):
    code = "unknown_segment"


class OutOfRange(Refused):
    code = "out_of_range"


class ReadOnly(Refused):
    code = "read_only"


class NoRoute(Refused):
    code = "no_route"


class SegmentUnavailable(TransferError):
    code = "segment_unavailable"


class HandoverRefused(TransferError):
    code = "handover_refused"


class FileFailed(TransferError):
    """`errno` is the system call's; the message names the call, the file and the offset."""

    code = "file_failed"

    def __init__(self, cause: OSError, action: str) -> None:
        super().__init__(f"{action}: {cause.strerror}")
        self.errno = cause.errno or 0
