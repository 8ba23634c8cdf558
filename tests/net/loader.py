"""A client that asks for as much as it can: `python -m tests.net.loader ADDRESS TOKEN_FILE NAME`.

Batches out and in, for ever; a line for each call that ended well: when it began and ended. The
first call that did not end well, or whose bytes are wrong, is the last.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from moontide.kvstore import PutStatus, connect

VALUES = 16
VALUE_BYTES = 64 << 10
CALL_SECONDS = 10.0


def main(address: str, token_file: str, name: str) -> None:
    values = [random.Random(f"{name}{n}").randbytes(VALUE_BYTES) for n in range(VALUES)]
    keys = [f"{name}-{number}" for number in range(VALUES)]
    token = Path(token_file).read_text().strip()
    with connect(address, token=token, timeout_s=CALL_SECONDS) as client:
        while True:
            began = time.monotonic()
            results = client.put_many(list(zip(keys, values, strict=True)))
            _tell(began)
            assert {result.status for result in results} <= {PutStatus.STORED, PutStatus.EXISTS}
            began = time.monotonic()
            found = client.get_many(keys)
            _tell(began)
            assert found == values
            client.remove_many(keys[::2])


def _tell(began: float) -> None:
    print(f"{began:.6f} {time.monotonic():.6f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
