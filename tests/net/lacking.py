"""Prints what this machine lacks for the tests of this folder; nothing when it lacks nothing."""

from __future__ import annotations

import os
import shutil
import subprocess

PROBE = f"mt-probe-{os.getpid()}"
TRIALS = {
    "network namespaces": f"ip netns add {PROBE}",
    "veth devices": f"ip -n {PROBE} link add probe type veth peer name other",
    "bridges": f"ip -n {PROBE} link add bridge type bridge",
    "the tbf queueing discipline": (
        f"tc -n {PROBE} qdisc add dev probe root tbf rate 4mbit burst 64kbit latency 200ms"
    ),
}


def lacking() -> list[str]:
    if os.getuid() != 0:
        return ["root"]
    missing = [f"{tool} (make system-deps)" for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return missing
    try:
        return [f"{what} ({reason})" for what, trial in TRIALS.items() if (reason := _try(trial))]
    finally:
        _try(f"ip netns delete {PROBE}")


def _try(command: str) -> str:
    """Why it does not work; empty when it does."""
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=20, check=False)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


if __name__ == "__main__":
    print(", ".join(lacking()))
