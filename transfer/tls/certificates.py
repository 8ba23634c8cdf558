"""What one end shows and what it trusts: three PEM files, checked before anything is served.

Trust is the cluster's own CA: whoever shows a certificate of it that is valid now is a member.
Names in certificates are not compared with addresses; who answers, the handshake inside proves.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidRequest

IGNORE_TIME = ssl.VerifyFlags(0x200000)
"""X509_V_FLAG_NO_CHECK_TIME, for which the ssl module has no name."""


@dataclass(frozen=True, slots=True, init=False)
class TlsFiles:
    """PEM: a certificate (with those between it and the CA), its key without a passphrase, and the
    CA that the other end's certificate must come from."""

    cert: Path
    key: Path
    ca: Path

    def __init__(self, cert: str | Path, key: str | Path, ca: str | Path) -> None:
        for name, path in (("cert", cert), ("key", key), ("ca", ca)):
            object.__setattr__(self, name, Path(path))

    def __str__(self) -> str:
        return f"tls_cert {self.cert}, tls_key {self.key}, tls_ca {self.ca}"


class Certificate(NamedTuple):
    subject: str
    issuer: str
    expires: float  # seconds since 1970

    @property
    def expires_on(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.expires))


class Contexts(NamedTuple):
    """For both sides; TLS 1.3 only, as both ends are ours."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def load_contexts(files: TlsFiles) -> Contexts:
    """Raises InvalidRequest naming what is missing, is no PEM, does not fit the others, or has
    expired: the files have to pass at an end that has the same ones."""
    server = _strict(ssl.PROTOCOL_TLS_SERVER, files)
    server.num_tickets = 0  # connections are kept: none is resumed
    client = _strict(ssl.PROTOCOL_TLS_CLIENT, files)
    try:
        _converse(client, server)
    except ssl.SSLError as error:
        shown = read_certificate(files)
        raise InvalidRequest(
            f"tls_cert {files.cert} ({shown.subject}, of {shown.issuer}, until {shown.expires_on}) "
            f"does not pass with tls_ca {files.ca}: {told(error)}; {fix_for(error)}"
        ) from error
    return Contexts(server, client)


def read_certificate(files: TlsFiles) -> Certificate:
    """The one of `files.cert`, also when it has expired. Raises InvalidRequest."""
    trusting = _bare(ssl.PROTOCOL_TLS_CLIENT)
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | IGNORE_TIME
    showing = _bare(ssl.PROTOCOL_TLS_SERVER)
    _load_own(showing, files)
    _load(files, lambda: trusting.load_verify_locations(files.cert))
    try:
        fields = _converse(trusting, showing).getpeercert() or {}
    except ssl.SSLError as error:
        raise InvalidRequest(f"tls_cert {files.cert}: {told(error)}") from error
    return Certificate(
        _shown(fields.get("subject", ())),
        _shown(fields.get("issuer", ())),
        ssl.cert_time_to_seconds(str(fields["notAfter"])),
    )


def told(error: ssl.SSLError) -> str:
    """In words, without where in OpenSSL's source it was raised."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).lower().replace("_", " ")


def fix_for(error: ssl.SSLError) -> str:
    """What helps against a certificate that was not accepted, here or at the other end."""
    if "expired" in told(error):
        return "renew it"
    if "not yet valid" in told(error):
        return "set the clocks, or wait until it is valid"
    return (
        "have it signed by the cluster's CA, for both server and client authentication, and give "
        "the same tls_ca everywhere"
    )


def _strict(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = _bare(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_own(context, files)
    _load(files, lambda: context.load_verify_locations(files.ca))
    return context


def _bare(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    _load(files, lambda: context.load_cert_chain(files.cert, files.key, password=_no_passphrase))


def _load(files: TlsFiles, load: Callable[[], None]) -> None:
    try:
        for path in (files.cert, files.key, files.ca):
            path.read_bytes()
        load()
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"{files}: {told(error)}; each has to be PEM, and the key the certificate's own"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"{error.filename} cannot be read: {error.strerror}") from error


def _no_passphrase() -> str:
    raise InvalidRequest("the key of --tls-key has a passphrase: give one without, of mode 0600")


def _converse(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a handshake in memory. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 2:
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ends[0]


def _shown(name: object) -> str:
    """A distinguished name: `CN=node-1, O=…`."""
    assert isinstance(name, tuple)
    return ", ".join(f"{key}={value}" for part in name for key, value in part)
