"""Caps of tenants on disk, against an index that is a list, and on a real disk."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from moontide.kvstore.daemon.tiers.tenant_caps import TenantCaps
from moontide.kvstore.store import TenantBytes, tenant_digest

from ...store_process import StartStore, StoreProcess
from ...waiting import wait_until
from .warm import ALICE, BLOCK_BYTES, BOB, NVME, admin_of, client_of, hits, prompt, write_blocks

TENANTS = {"aa": "alice", "bb": "bob"}


class Location(NamedTuple):
    namespace: str
    entry: bytes
    length: int
    sequence: int


class Disk:
    """An index of one list, read a few entries a page; what is dropped leaves it."""

    def __init__(self) -> None:
        self.entries: list[Location] = []
        self.num_reoffered = 0
        self.caps = TenantCaps(
            self,  # type: ignore[arg-type]  # its locations are as far as they are looked at
            tenant_of=TENANTS.get,
            drop=self.drop,
            reoffer=self.reoffer,
        )

    def write(self, namespace: str, num_bytes: int) -> bool:
        if not self.caps.admits(namespace, num_bytes):
            return False
        number = len(self.entries)
        self.entries.append(Location(namespace, b"%d" % number, num_bytes, number))
        return True

    def page(self, after: bytes, limit: int) -> tuple[list[Location], bytes]:
        start = int(after or b"0")
        found = self.entries[start : start + 3]
        end = start + len(found)
        return found, b"%d" % end if end < len(self.entries) else b""

    def drop(self, entries: list[bytes]) -> None:
        self.entries = [each for each in self.entries if each.entry not in entries]

    def reoffer(self) -> None:
        self.num_reoffered += 1

    def held(self, namespace: str) -> int:
        return sum(each.length for each in self.entries if each.namespace == namespace)

    def passes(self, count: int) -> None:
        for _ in range(count * (len(self.entries) // 3 + 2)):
            self.caps.tick()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_without_caps_nothing_is_read_or_refused(disk: Disk) -> None:
    assert all(disk.write("bb", 10) for _ in range(100))
    disk.passes(2)
    assert disk.held("bb") == 1000


def test_what_was_written_first_goes_when_a_cap_is_set(disk: Disk) -> None:
    for _ in range(20):
        disk.write("bb", 10)
        disk.write("aa", 10)
    disk.caps.set_caps(TenantBytes(None, {"bob": 100}))
    disk.passes(2)
    assert 50 <= disk.held("bb") <= 100
    assert disk.held("aa") == 200
    kept = [each.sequence for each in disk.entries if each.namespace == "bb"]
    assert kept == sorted(kept)
    assert min(kept) > 20


def test_a_tenant_writes_no_more_than_its_cap_leaves(disk: Disk) -> None:
    disk.caps.set_caps(TenantBytes(100))
    assert sum(disk.write("bb", 10) for _ in range(50)) == 10
    assert disk.write("aa", 10)
    disk.passes(1)
    assert disk.num_reoffered == 1
    for _ in range(30):
        disk.write("bb", 10)
        disk.caps.tick()
        assert disk.held("bb") <= 100


def test_strings_and_unknown_namespaces_are_never_refused(disk: Disk) -> None:
    disk.caps.set_caps(TenantBytes(10))
    assert all(disk.write(namespace, 100) for namespace in ("", "cc", "", "cc"))
    disk.passes(2)
    assert len(disk.entries) == 4


def test_a_tenant_s_blocks_on_disk_stay_under_its_cap(store_daemon: StartStore) -> None:
    cap = 8 * BLOCK_BYTES
    setting = f"none,{tenant_digest(BOB.salt)}={cap}"
    node = store_daemon(*NVME, "--nvme-tenant-cap", setting)
    with client_of(node) as client:
        write_blocks(client, prompt(20), ALICE)
        for number in range(6):
            write_blocks(client, prompt(4, seed=number), BOB)
        wait_until(lambda: on_disk(node, ALICE.digest.hex()) == 20)
        admin_of(node).patch("/v1/config", {"settings": {"nvme_tenant_cap": "none"}})
        wait_until(lambda: on_disk(node, BOB.digest.hex()) == 24, seconds=20)
        admin_of(node).patch("/v1/config", {"settings": {"nvme_tenant_cap": setting}})
        wait_until(lambda: on_disk(node, BOB.digest.hex()) <= 8, seconds=20)
        assert on_disk(node, ALICE.digest.hex()) == 20
        with client.kv(ALICE) as alice:
            assert hits(alice, prompt(20)) == 20 * ALICE.block_tokens


def on_disk(node: StoreProcess, namespace: str) -> int:
    page = admin_of(node).get(f"/v1/blocks?tier=nvme&namespace={namespace}&limit=1000")
    return len(page["entries"])
