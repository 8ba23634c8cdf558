"""A store whose disk was written by the version before: everything is there, nothing comes back."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from moontide.kvstore import connect

from ...store_process import StartStore, StoreProcess
from ..daemon.admin import Admin
from .nvme_v1 import FLAGS, NAMESPACE, REMOVED, STRINGS, TOKENS, layer_of

WRITTEN = Path(__file__).parents[2] / "data" / "nvme_v1.tar.xz"


def start_on_old_disk(start: StartStore, *, without: str | None = None) -> StoreProcess:
    daemon = start(*FLAGS)
    daemon.kill()
    shutil.rmtree(daemon.data_dir / "nvme")
    with tarfile.open(WRITTEN) as archive:
        archive.extractall(daemon.data_dir, filter="data")
    if without is not None:
        shutil.rmtree(daemon.data_dir / "nvme" / without)
    daemon.start()
    return daemon


@pytest.mark.parametrize("without", [None, "index"])
def test_r02_the_disk_of_the_version_before_opens_with_all_entries(
    store_daemon: StartStore, without: str | None
) -> None:
    """Also when the index is lost, and the log is read."""
    daemon = start_on_old_disk(store_daemon, without=without)
    kept = {name: value for name, value in STRINGS.items() if name not in REMOVED}
    with connect(f"unix:{daemon.socket}", timeout_s=20.0) as client, client.kv(NAMESPACE) as kv:
        assert client.get_many(list(kept)) == list(kept.values())
        assert client.exists_many(REMOVED) == [False] * len(REMOVED)
        keys = kv.keys(TOKENS)
        with kv.reader(TOKENS) as reader:
            assert list(reader.blocks) == keys
            for layer in range(kv.num_layers):
                size = kv.layer_bytes(layer)
                assert reader.layer(layer) == [layer_of(key, layer, size) for key in keys]
    stats = Admin(daemon.admin, daemon.token).stats()
    assert stats["tiers"]["nvme"]["entries"] == len(kept) + len(keys)
    assert stats["tiers"]["nvme"]["corrupt"] == 0
    assert stats["nvme"]["foreign_files"] == []
