"""Two nodes with a worker each: the prompt's KV from NVMe, and from the other node's DRAM."""

from __future__ import annotations

from moontide.kvstore.bench import Row

from .client import Client
from .controls import Controls
from .measuring import Asker, Prompts, Say, ratio_row
from .processes import Cluster


class TiersBench:
    """Each prompt three ways: cold at one worker, from that node's NVMe, and at the other node,
    which has nothing of it."""

    def __init__(self, model: str, cluster: Cluster, prompts: Prompts, say: Say) -> None:
        self._conductor = Asker(Client(cluster.conductor.url, cluster.token), model)
        self._controls = Controls(cluster)
        self._home, self._other = cluster.workers
        self._prompts = prompts
        self._say = say

    def run(self, pairs: int) -> list[Row]:
        """Raises CommandFailed, also where a prompt's KV did not come from where its row says."""
        for worker in (self._home, self._other):
            self._conductor.cold(self._prompts.next(), worker=worker.id)  # warms up
        cold, nvme, remote = [], [], []
        for index in range(pairs):
            self._say(f"nvme and remote, pair {index + 1} of {pairs}")
            prompt = self._prompts.next()
            cold.append(self._conductor.cold(prompt, worker=self._home.id).seconds)
            nvme.append(self._from_nvme(prompt))
            remote.append(self._from_the_other_node(prompt))
        return [
            ratio_row("nvme TTFT / cold TTFT", "seconds", nvme, cold),
            ratio_row("remote TTFT / cold TTFT", "seconds", remote, cold),
        ]

    def _from_nvme(self, prompt: list[int]) -> float:
        self._controls.flush()
        self._controls.clear_engine_caches()
        self._controls.evict_dram(self._home.node)
        found = {"nvme": self._prompts.full_block_tokens}
        return self._conductor.cached(prompt, found, worker=self._home.id).seconds

    def _from_the_other_node(self, prompt: list[int]) -> float:
        """The run before brought it back into the home node's DRAM."""
        self._controls.settle()
        self._controls.clear_engine_caches()
        self._controls.clear_store(self._other.node)
        found = {"dram": self._prompts.full_block_tokens}
        return self._conductor.cached(prompt, found, worker=self._other.id).seconds
