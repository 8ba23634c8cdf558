"""Certificates of a test: made when it runs, by a CA of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from moontide.kvstore import TlsFiles


class Authority:
    """One cluster's CA. Its files lie below `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA(organization_name="Moontide tests")
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *, until: datetime | None = None) -> TlsFiles:
        """A node's or client's; the same name again replaces its files, as a renewal does."""
        issued = self._ca.issue_cert(common_name=name, not_after=until)
        files = TlsFiles(self._folder / f"{name}.pem", self._folder / f"{name}.key", self.ca)
        files.key.touch(mode=0o600)
        issued.private_key_pem.write_to_path(files.key)
        issued.cert_chain_pems[0].write_to_path(files.cert)
        return files

    def issue_expired(self, name: str) -> TlsFiles:
        return self.issue(name, until=datetime.now(UTC) - timedelta(days=1))


def flags(files: TlsFiles) -> tuple[str, ...]:
    """Of `moontide store`."""
    return (
        *("--tls-cert", str(files.cert)),
        *("--tls-key", str(files.key)),
        *("--tls-ca", str(files.ca)),
    )
