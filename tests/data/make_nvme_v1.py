"""Wrote `nvme_v1.tar.xz`: the disk tier of a store, as the code before wire version 2 left it.

It is frozen: what it shows is that later versions read what that one wrote. It was made with
`PYTHONPATH` at that code's `.src`, by `python tests/data/make_nvme_v1.py`."""

from __future__ import annotations

import signal
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.kvstore.upgrade.nvme_v1 import FLAGS, NAMESPACE, REMOVED, STRINGS, TOKENS, layer_of  # noqa: E402 - the path first
from tests.store_process import store_processes  # noqa: E402 - the path first

from moontide.kvstore import connect  # noqa: E402 - the path first


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, store_processes(Path(folder)) as start:
        daemon = start(*FLAGS)
        with connect(f"unix:{daemon.socket}") as client:
            client.put_many(list(STRINGS.items()))
            client.remove_many(list(REMOVED))
            with client.kv(NAMESPACE) as kv, kv.writer(TOKENS) as writer:
                for layer in range(kv.num_layers):
                    size = kv.layer_bytes(layer)
                    writer.layer(layer, [layer_of(key, layer, size) for key in kv.keys(TOKENS)])
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        with tarfile.open(HERE / "nvme_v1.tar.xz", "w:xz") as archive:
            archive.add(daemon.data_dir / "nvme", "nvme")


if __name__ == "__main__":
    main()
