"""What has two replicas outlives the node it was put at."""

from __future__ import annotations

from moontide.kvstore import BlockStore, PutStatus, StoreClient

from .cluster import Cluster, Node
from .visitor import NAMESPACE, block_of

KEY, VALUE = "replicated", b"replicated" * 1000
TOKENS = range(7000, 7070)
NUM_REPLICAS = 2
CALL_SECONDS = 1.0
"""For each call while all is well, and after the node was killed."""


class Replicated:
    """One value and some blocks."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        """Theirs is `node`."""
        self.node = node
        self._cluster = cluster
        self._others = [each for each in cluster.nodes if each is not node]

    def put(self) -> list[str]:
        """Of the value the replica is there when it is answered; of the blocks soon after. Returns
        what is wrong."""
        with self._connect(self.node) as client:
            with client.kv(NAMESPACE, replicas=NUM_REPLICAS) as kv, kv.writer(TOKENS) as writer:
                for layer in range(kv.num_layers):
                    writer.layer(layer, _blocks(kv, layer))
            result = client.put(KEY, VALUE, replicas=NUM_REPLICAS)
        made = result.status is PutStatus.STORED and not result.reason
        return [] if made else [f"{self.node.name}: no replica although all is well: {result}"]

    def read_at_others(self) -> list[str]:
        """Each reads all of it, at once. Returns what is wrong."""
        return [
            f"{node.name} misses {what} with a replica, which {self.node.name} had"
            for node in self._others
            for what in self._missed(node)
        ]

    def _missed(self, node: Node) -> list[str]:
        missed = []
        with self._connect(node) as client:
            if client.get(KEY) != VALUE:
                missed.append("a value")
            with client.kv(NAMESPACE) as kv, kv.reader(TOKENS) as reader:
                for layer in range(kv.num_layers):
                    if list(map(bytes, reader.layer(layer))) != _blocks(kv, layer):
                        missed.append(f"layer {layer} of blocks")
        return missed

    def _connect(self, node: Node) -> StoreClient:
        return self._cluster.connect(node, "tcp", CALL_SECONDS)


def _blocks(kv: BlockStore, layer: int) -> list[bytes]:
    return [block_of(key, layer, kv.layer_bytes(layer)) for key in kv.keys(TOKENS)]
