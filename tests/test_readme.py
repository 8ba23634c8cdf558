"""What README tells a newcomer to type works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from .store_process import StartStore

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SOCKET = "unix:.run/node-1.sock"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_store_example_runs_as_it_is_written(store_daemon: StartStore) -> None:
    [example] = [block for block in python_blocks() if SOCKET in block]
    daemon = store_daemon()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=example.replace(SOCKET, f"unix:{daemon.socket}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["b'hello'", "b'hello'", "192", "[98304, 98304, 98304]", ""]


def test_the_socket_of_the_examples_is_the_one_that_up_makes() -> None:
    assert re.search(r"moontide up .*--run-dir \.run\n", README)
    assert "moontide up --run-dir .run" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_request_is_json_and_every_example_is_python() -> None:
    bodies = re.findall(r"-d '(.*?)'", README, re.DOTALL)
    assert bodies
    for body in bodies:
        assert json.loads(body)["messages"]
    for block in python_blocks():
        compile(block, "README.md", "exec")
