"""One-sided transfers over TCP: the client that submits and the server that serves segments."""

from .server import ServerLimits, ServerReport, TransferServer
from .transport import TcpLimits, TcpTransport

__all__ = ["ServerLimits", "ServerReport", "TcpLimits", "TcpTransport", "TransferServer"]
