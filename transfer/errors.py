"""Errors of the transfer component.

TransferError
├── SegmentUnavailable   the memory asked for cannot be had (names asked and available)
└── HandoverRefused      descriptors or a mapping did not arrive as announced
"""

from __future__ import annotations


class TransferError(Exception):
    """Base of this component; `code` is stable, `retryable` says whether the same call may succeed
    later."""

    code = "transfer_error"
    retryable = False


class SegmentUnavailable(TransferError):
    code = "segment_unavailable"


class HandoverRefused(TransferError):
    code = "handover_refused"
