"""What lies in `tests/data/nvme_v1.tar.xz`. Frozen like the file itself."""

from __future__ import annotations

import hashlib
import random

from moontide.kvstore import Group, KVLayout, Namespace

FLAGS = ("--dram", "16MiB", "--segment", "4MiB", "--nvme", "16MiB", "--nvme-region", "1MiB")
LAYOUT = KVLayout((Group("full", 2, 2, 8, "float16"),))
NAMESPACE = Namespace(weights_id="v1", layout=LAYOUT, tokenizer_digest="t", block_tokens=16)
TOKENS = range(16 * 8)
SIZES = (0, 1, 100, 4095, 4096, 20_000)
_RANDOM = random.Random(1)
STRINGS = {f"v1/{index}": _RANDOM.randbytes(SIZES[index % len(SIZES)]) for index in range(24)}
STRINGS["v1/packs well"] = b"moontide " * 5000
REMOVED = tuple(f"v1/{index}" for index in range(0, 24, 7))


def layer_of(key: bytes, layer: int, num_bytes: int) -> bytes:
    seed = hashlib.blake2b(key + bytes([layer])).digest()
    return (seed * (num_bytes // len(seed) + 1))[:num_bytes]
