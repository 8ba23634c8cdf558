"""Moves bytes between memory segments: shared memory now, TCP, RDMA and files behind the same
names."""

from .copying import checksum, copy, copy_and_checksum
from .descriptors import close_descriptors, receive_with_descriptors, send_with_descriptors
from .segments import Mapping, Segment, check_memory

__all__ = [
    "Mapping",
    "Segment",
    "check_memory",
    "checksum",
    "close_descriptors",
    "copy",
    "copy_and_checksum",
    "receive_with_descriptors",
    "send_with_descriptors",
]
