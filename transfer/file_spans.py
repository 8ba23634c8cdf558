"""Spans of files, named and moved like any other segment."""

from __future__ import annotations

from dataclasses import dataclass

from .batches import Limits
from .files import DirectFile
from .queued import Move, QueuedTransport, check_request
from .registry import Access
from .types import Opcode, SegmentAddress, TransferRequest


@dataclass(frozen=True, slots=True)
class FileSpan:
    """`num_bytes` of `file` from `offset`. With LANDING, of a file opened for writing; what was
    written is durable only after the owner's `sync`."""

    file: DirectFile
    offset: int
    num_bytes: int
    access: Access = Access.READ


class FileTransport(QueuedTransport[FileSpan]):
    """Reads and writes attached file spans, past the page cache where offset, address and length
    are whole pages. The files stay the caller's: close them after the transport. A disk that hangs
    keeps a slice pending past its deadline, since the kernel may still write its memory."""

    def __init__(self, limits: Limits | None = None, *, threads: int = 4) -> None:
        super().__init__("transfer-file", limits or Limits(), threads)

    def attach(self, address: SegmentAddress, span: FileSpan) -> None:
        self._attached[address] = span

    def _prepare(self, request: TransferRequest, segment: FileSpan) -> Move:
        check_request(request, segment.num_bytes, segment.access)
        first = segment.offset + request.offset
        file = segment.file
        move = file.read_into if request.opcode is Opcode.READ else file.write_from
        return lambda start, stop: move([request.local[start:stop]], first + start)
