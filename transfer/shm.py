"""Shared memory: segments of other processes that this one has mapped."""

from __future__ import annotations

from .batches import Limits
from .copying import copy
from .errors import HandoverRefused
from .queued import Move, QueuedTransport, check_request
from .registry import Access
from .segments import Mapping, Segment
from .types import Opcode, SegmentAddress, TransferRequest, boot_id


class ShmTransport(QueuedTransport[Mapping | Segment]):
    """Copies between local memory and attached segments. A segment is attached by what its owner
    handed over (descriptor, boot id, instance), never found by host name or address."""

    def __init__(self, limits: Limits | None = None, *, threads: int = 1) -> None:
        super().__init__("transfer-shm", limits or Limits(), threads)

    def attach(self, address: SegmentAddress, memory: Mapping | Segment, *, boot: str) -> None:
        """`boot` is the kernel boot the owner said it runs under. The memory stays the caller's.
        Raises HandoverRefused when it cannot be the same memory."""
        if boot != boot_id():
            raise HandoverRefused(
                f"segment {address.segment} of {address.instance} was handed over under boot "
                f"{boot[:64]!r}; this is {boot_id()}: use tcp"
            )
        self._attached[address] = memory

    def _prepare(self, request: TransferRequest, segment: Mapping | Segment) -> Move:
        shared = segment.buffer
        check_request(request, shared.nbytes, Access.READ if shared.readonly else Access.LANDING)
        span = shared[request.offset : request.offset + request.local.nbytes]
        if request.opcode is Opcode.READ:
            target, source = request.local, span
        else:
            target, source = span, request.local

        def move(start: int, stop: int) -> None:
            copy(target[start:stop], source[start:stop])

        return move
