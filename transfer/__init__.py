"""Moves bytes between segments: shared memory, TCP and files behind one interface."""

from .batches import Limits
from .copy_helper import CopyHelper
from .copying import Bytes, checksum, checksums, copy, copy_and_checksum, do_nothing
from .cores import Cores
from .descriptors import close_descriptors, receive_with_descriptors, send_with_descriptors
from .file_spans import FileSpan, FileTransport
from .files import DirectFile, FileAccess, aligned_buffer, is_aligned, sync_directory
from .locking import take
from .memory import MemoryBound, available_memory
from .registry import Access, SegmentRegistry
from .segments import Mapping, Segment, check_memory
from .shm import ShmTransport
from .strangers import StrangerLimits, Strangers
from .streams import Manifest, Notice
from .tcp import ServerLimits, ServerReport, TcpLimits, TcpTransport, TransferServer
from .tls import NEEDS_TLS, Certificate, TlsEndpoint, TlsFiles, read_certificate
from .transport import Transport

__all__ = [
    "Access",
    "Bytes",
    "Certificate",
    "CopyHelper",
    "Cores",
    "DirectFile",
    "FileAccess",
    "FileSpan",
    "FileTransport",
    "Limits",
    "Manifest",
    "Mapping",
    "MemoryBound",
    "NEEDS_TLS",
    "Notice",
    "Segment",
    "SegmentRegistry",
    "ServerLimits",
    "ServerReport",
    "ShmTransport",
    "StrangerLimits",
    "Strangers",
    "TcpLimits",
    "TcpTransport",
    "TlsEndpoint",
    "TlsFiles",
    "TransferServer",
    "Transport",
    "aligned_buffer",
    "available_memory",
    "check_memory",
    "checksum",
    "checksums",
    "close_descriptors",
    "copy",
    "copy_and_checksum",
    "do_nothing",
    "is_aligned",
    "read_certificate",
    "receive_with_descriptors",
    "send_with_descriptors",
    "sync_directory",
    "take",
]
