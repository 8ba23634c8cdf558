"""Settings that cannot work are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moontide.kvstore.daemon.by_digest import TenantSizes
from moontide.kvstore.daemon.settings import StoreSettings
from moontide.kvstore.errors import InvalidRequest
from moontide.kvstore.service import HostPort, Size


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nvme": Size(1 << 20)}, r"nvme is 1MiB.*raise it"),
        ({"nvme_entries": 5}, r"nvme_entries is 5, without effect as nvme is 0: give --nvme"),
        (
            {"nvme_writes": "late", "nvme_tenant_cap": TenantSizes.parse("1GiB")},
            r"nvme_writes is late and nvme_tenant_cap is 1GiB, without effect as nvme is 0",
        ),
        (
            {"nvme": Size(1 << 30), "nvme_writes": "late", "nvme_backlog": "refuse"},
            r"writes is late and backlog refuse.*choose one",
        ),
        ({"nvme": Size(64 << 20), "nvme_writes": "late"}, r"nvme 64MiB below dram 1GiB.*raise"),
        ({"transports": ("shm", "rdma")}, r"rdma"),
        ({"transports": ("shm",), "listen": HostPort("::1", 1)}, r"listen is \[::1\]:1"),
        (
            {"transfer_listen": HostPort("::1", 1)},
            r"transfer_listen is \[::1\]:1.*cluster memory.*file:DIRECTORY or etcd://HOST:PORT",
        ),
        ({"rails": ("eth0",)}, r"rails is eth0, without effect.*etcd://HOST:PORT.*else drop"),
        ({"remote_copies": "drop"}, r"remote_copies is drop, without effect.*etcd://HOST:PORT"),
        ({"cluster": "file:/c", "listen": HostPort("0.0.0.0", 7420)}, r"listen is 0.0.0.0:7420"),
        (
            {"cluster": "file:/c", "transfer_listen": HostPort("::", 1)},
            r"transfer_listen is \[::\]",
        ),
        ({"cluster": "file:/c", "admin": HostPort("::", 7421)}, r"admin is \[::\]:7421"),
        ({"inline": Size(1 << 20), "segment": Size(4096)}, r"inline is 1MiB.*4KiB"),
    ],
)
def test_contradictions_name_the_value_and_the_fix(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        StoreSettings(data_dir=Path("data"), **changes)


def test_the_socket_lies_in_the_data_dir_unless_given() -> None:
    assert StoreSettings(data_dir=Path("d")).socket_path == Path("d/store.sock")
    assert StoreSettings(data_dir=Path("d"), socket=Path("/s")).socket_path == Path("/s")
