"""Rounds in which the link between two nodes is cut: `python -m tests.e2e.partitioned FOLDER MODEL
FIRST_ROUND NUM_ROUNDS`, as root of a network namespace of its own. Fails with a traceback."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..cluster_process import (
    MOONTIDE,
    SMALL,
    START_SECONDS,
    STOP_SECONDS,
    RunningCluster,
    clean_environment,
)
from .networks import HERE, NODES, Networks, address
from .rounds import LOST, OUTPUT_TOKENS, PATIENT_CONDUCTOR, Fault, Load, run_round

ROLES = {1: "prefill", 2: "decode"}
DATA, ADMIN, WORKER, CONDUCTOR = 7420, 7421, 7440, 7400


class TwoNetworks(RunningCluster):
    """Node 1 prefills, node 2 decodes; the Conductor stands at the switch."""

    def __init__(self, folder: Path, model: Path, networks: Networks) -> None:
        super().__init__(folder, folder / "cluster", self._check)
        self._model = str(model)
        self._networks = networks
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "token").write_text("secret-of-a-test-cluster\n")
        (folder / "token").chmod(0o600)

    def start(self, stack: contextlib.ExitStack) -> None:
        for node in NODES:
            self._run(stack, f"node-{node}", self._store(node), self._networks.inside(node))
        for node in NODES:
            self._run(stack, ROLES[node], self._worker(node), self._networks.inside(node))
        self._run(stack, "conductor", ["conductor", "--listen", f"{HERE}:{CONDUCTOR}"], ())
        (self.folder / "state.json").write_text(json.dumps(self._describe()))
        self.await_joined(START_SECONDS)  # their starts, which `moontide up` waits for, are in it

    def _store(self, node: int) -> list[str]:
        here = address(node)
        return [
            *(
                "store",
                "--node-id",
                f"node-{node}",
                "--data-dir",
                str(self.folder / f"node-{node}"),
            ),
            *("--socket", self._socket(node), "--dram", "64MiB"),
            *("--listen", f"{here}:{DATA}", "--admin", f"{here}:{ADMIN}"),
        ]

    def _worker(self, node: int) -> list[str]:
        return [
            *("worker", "--id", ROLES[node], "--role", ROLES[node], "--model", self._model),
            *("--store", f"unix:{self._socket(node)}", "--listen", f"{address(node)}:{WORKER}"),
        ]

    def _socket(self, node: int) -> str:
        return str(self.folder / f"{node}.sock")

    def _run(
        self,
        stack: contextlib.ExitStack,
        name: str,
        arguments: list[str],
        inside: Sequence[str],
    ) -> None:
        shared = ["--token-file", str(self.folder / "token")]
        shared += ["--cluster", f"file:{self.folder / 'cluster'}"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*inside, *MOONTIDE, *arguments, *shared],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**clean_environment(), **SMALL, **PATIENT_CONDUCTOR},
            )
        self._processes[name] = process
        stack.callback(process.wait, STOP_SECONDS)
        stack.callback(process.terminate)

    def _describe(self) -> dict[str, Any]:
        """As the state file of `moontide up`."""
        pids = {name: process.pid for name, process in self._processes.items()}
        return {
            "conductor": {"url": f"http://{HERE}:{CONDUCTOR}", "pid": pids["conductor"]},
            "nodes": [
                {
                    "id": f"node-{node}",
                    "socket": self._socket(node),
                    "admin": f"http://{address(node)}:{ADMIN}",
                    "pid": pids[f"node-{node}"],
                }
                for node in NODES
            ],
            "workers": [
                {
                    "id": ROLES[node],
                    "role": ROLES[node],
                    "node": f"node-{node}",
                    "url": f"http://{address(node)}:{WORKER}",
                    "pid": pids[ROLES[node]],
                }
                for node in NODES
            ],
        }

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise AssertionError((self.folder / f"{name}.log").read_text(errors="replace"))


def main(folder: Path, model: Path, rounds: range) -> None:
    with Networks() as networks, contextlib.ExitStack() as stack:
        cluster = TwoNetworks(folder, model, networks)

        @contextlib.contextmanager
        def link_cut(cluster: RunningCluster, load: Load, rng: random.Random) -> Iterator[None]:
            networks.cut()
            try:
                yield
            finally:
                networks.heal()

        cluster.start(stack)
        for number in rounds:
            run_round(cluster, Fault(link_cut, range(OUTPUT_TOKENS), LOST), random.Random(number))


if __name__ == "__main__":
    first, count = map(int, sys.argv[3:])
    main(Path(sys.argv[1]), Path(sys.argv[2]), range(first, first + count))
