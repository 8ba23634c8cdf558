"""TLS between nodes and clients of one cluster, under the same sockets as without it."""

from .certificates import Certificate, TlsFiles, read_certificate
from .endpoint import NEEDS_TLS, TlsEndpoint

__all__ = ["NEEDS_TLS", "Certificate", "TlsEndpoint", "TlsFiles", "read_certificate"]
