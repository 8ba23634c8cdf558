"""What the doctor says of a store's certificate."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moontide.kvstore import TlsFiles
from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.doctor.types import Finding, Status

from ...authority import Authority
from .recorded import RecordedHost, findings, record


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def examined(files: TlsFiles, folder: Path) -> dict[str, Finding]:
    settings = StoreSettings(
        data_dir=folder, tls_cert=files.cert, tls_key=files.key, tls_ca=files.ca
    )
    return findings(RecordedHost(record(folder / "machine", {})), settings)


def test_a_certificate_is_told_with_its_expiry(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("node", until=datetime.now(UTC) + timedelta(days=100, hours=1))
    found = examined(files, tmp_path)["tls certificate"]
    assert found.status is Status.OK
    assert "commonName=node, expires 2" in found.value
    assert found.value.endswith("in 100 days")


def test_one_that_expires_soon_and_a_key_that_others_read_are_warnings(
    authority: Authority, tmp_path: Path
) -> None:
    files = authority.issue("node", until=datetime.now(UTC) + timedelta(days=2, hours=1))
    files.key.chmod(0o644)
    found = examined(files, tmp_path)
    assert found["tls certificate"].status is found["tls key"].status is Status.WARN
    assert found["tls certificate"].value.endswith("in 2 days")
    assert "renew it in place" in found["tls certificate"].fix
    assert found["tls key"].fix == f"chmod 600 {files.key}"


def test_what_would_keep_the_store_from_starting_fails(
    authority: Authority, tmp_path: Path
) -> None:
    away = dataclasses.replace(authority.issue("node"), cert=tmp_path / "away.pem")
    for files, told in (
        (authority.issue_expired("old"), "certificate has expired"),
        (away, "away.pem cannot be read: No such file"),
    ):
        found = examined(files, tmp_path)["tls certificate"]
        assert found.status is Status.FAIL
        assert told in found.value
        assert found.fix
