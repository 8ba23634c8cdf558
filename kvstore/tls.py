"""TLS of a daemon or a client, from its files."""

from __future__ import annotations

from moontide.transfer import TlsEndpoint, TlsFiles
from moontide.transfer import errors as transfer_errors

from .errors import InvalidRequest


def open_tls(files: TlsFiles | None) -> TlsEndpoint | None:
    """Raises InvalidRequest for files that would not pass at the other end."""
    if files is None:
        return None
    try:
        return TlsEndpoint(files)
    except transfer_errors.InvalidRequest as error:
        raise InvalidRequest(str(error)) from error
