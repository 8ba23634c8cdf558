"""Moves bytes between memory segments: shared memory now, TCP, RDMA and files behind the same
names."""

from .copying import checksum, copy, copy_and_checksum
from .descriptors import close_descriptors, receive_with_descriptors, send_with_descriptors
from .files import DirectFile, FileAccess, aligned_buffer, is_aligned, sync_directory
from .segments import Mapping, Segment, check_memory

__all__ = [
    "DirectFile",
    "FileAccess",
    "Mapping",
    "Segment",
    "aligned_buffer",
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
