from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import TOKEN, Serve


def test_the_kit_survives_schemathesis(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    result = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{served.url}/openapi.json",
            *("--header", f"Authorization: Bearer {TOKEN}"),
            *("--exclude-path-regex", "/v1/(wait|events|fault)"),
            *("--max-examples", "20", "--generation-deterministic", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
