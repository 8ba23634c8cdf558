"""Moves bytes between memory segments: shared memory now, TCP, RDMA and files behind the same
names."""

from .batches import Limits
from .copying import checksum, copy, copy_and_checksum
from .descriptors import close_descriptors, receive_with_descriptors, send_with_descriptors
from .files import DirectFile, FileAccess, aligned_buffer, is_aligned, sync_directory
from .registry import Access, SegmentRegistry
from .segments import Mapping, Segment, check_memory
from .tcp import ServerLimits, ServerReport, TcpLimits, TcpTransport, TransferServer
from .transport import Transport

__all__ = [
    "DirectFile",
    "FileAccess",
    "Access",
    "Limits",
    "Mapping",
    "Segment",
    "aligned_buffer",
    "SegmentRegistry",
    "ServerLimits",
    "ServerReport",
    "TcpLimits",
    "TcpTransport",
    "TransferServer",
    "Transport",
    "check_memory",
    "checksum",
    "close_descriptors",
    "copy",
    "copy_and_checksum",
    "is_aligned",
    "receive_with_descriptors",
    "send_with_descriptors",
    "sync_directory",
]
