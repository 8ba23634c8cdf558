"""The certificate that other nodes and remote clients are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator

from moontide.transfer import read_certificate

from ...errors import InvalidRequest
from ...tls import open_tls
from ..types import Case, Finding, Status

WARN_DAYS = 30
DAY_SECONDS = 86400
_NEEDED = f"of the cluster's CA, valid for {WARN_DAYS} days or more"


class TlsCertificate:
    def examine(self, case: Case) -> Iterator[Finding]:
        files = case.store.tls_files
        if files is None:
            yield Finding("tls", "off: the token is proved, payload goes in the clear", "any")
            return
        try:
            open_tls(files)
        except InvalidRequest as error:
            value, _, fix = str(error).partition("; ")
            fix = fix or "give files that can be read to --tls-cert, --tls-key and --tls-ca"
            yield Finding("tls certificate", value, _NEEDED, Status.FAIL, fix)
            return
        shown = read_certificate(files)
        days = int((shown.expires - time.time()) // DAY_SECONDS)
        value = f"{files.cert}: {shown.subject}, expires {shown.expires_on}, in {days} days"
        if days < WARN_DAYS:
            fix = "renew it in place: running stores take it from the next connection on"
            yield Finding("tls certificate", value, _NEEDED, Status.WARN, fix)
        else:
            yield Finding("tls certificate", value, _NEEDED)
        if files.key.stat().st_mode & 0o077:
            value = f"{files.key} can be read by others"
            yield Finding("tls key", value, "mode 0600", Status.WARN, f"chmod 600 {files.key}")
