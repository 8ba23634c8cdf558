"""The admin REST of a live daemon keeps what its OpenAPI document promises, whatever is asked of
it: every route of /v1/*, with all of schemathesis's checks, in a store that has things in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...store_process import StartStore, StoreProcess
from .admin import Admin
from .warm import NVME, client_of, prompt, put_all, values, write_blocks

STREAMS = "/v1/events"
"""Its answer does not end; test_event_stream.py reads it."""
CONFIG = """
[checks]
# A body over the bound is refused unread.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 413, 415]
"""
NOT_PROMISED = "positive_data_acceptance"
"""A request may fit the schema and still be refused: a key too long once it is decoded, a pin that
nobody holds, conditions that exclude each other."""


@pytest.fixture
def daemon(store_daemon: StartStore) -> Iterator[StoreProcess]:
    node = store_daemon(*NVME)
    with client_of(node) as client:
        put_all(client, values(100))
        write_blocks(client, prompt(20))
    yield node
    admin = Admin(node.admin, node.token)
    admin.check_at_rest()
    assert admin.stats()["internal_errors"] == 0
    _, found, traceback = node.log.read_text().partition("Traceback")
    assert not found, traceback[:4000]


def run_schemathesis(daemon: StoreProcess, folder: Path, *options: str, seconds: float) -> str:
    (folder / "schemathesis.toml").write_text(CONFIG)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{daemon.admin}/openapi.json",
            *("--header", f"Authorization: Bearer {daemon.token}"),
            *("--exclude-path", STREAMS, "--no-color"),
            *("--checks", "all", "--exclude-checks", NOT_PROMISED),
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def operations(daemon: StoreProcess) -> int:
    """All that the document names, without the streams."""
    status, document = Admin(daemon.admin, None).call("GET", "/openapi.json")
    assert status == 200
    methods = {"get", "post", "put", "patch", "delete"}
    paths = {path: item for path, item in document["paths"].items() if path != STREAMS}
    assert len([path for path in paths if path.startswith("/v1/")]) >= 7, json.dumps(list(paths))
    return sum(method in methods for item in paths.values() for method in item)


@pytest.mark.timeout(240)
def test_the_admin_rest_survives_schemathesis(daemon: StoreProcess, tmp_path: Path) -> None:
    output = run_schemathesis(
        daemon,
        tmp_path,
        *("--max-examples", "6", "--generation-deterministic"),
        seconds=200,
    )
    count = operations(daemon)
    assert f"Selected: {count}/{count + 1}" in output, output[-3000:]


@pytest.mark.soak
@pytest.mark.timeout(1900)
def test_the_admin_rest_survives_schemathesis_for_long(
    daemon: StoreProcess, tmp_path: Path
) -> None:
    run_schemathesis(daemon, tmp_path, "--max-examples", "1000", seconds=1800)
