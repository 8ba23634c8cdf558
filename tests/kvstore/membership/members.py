"""Records of members, and a clock that stands until it is set."""

from __future__ import annotations

from dataclasses import dataclass

from moontide.kvstore.membership import StoreRecord, WorkerRecord

TTL_S = 6.0


@dataclass(slots=True)
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def store(name: str = "node-0", instance: str = "node-0/1/aa") -> StoreRecord:
    return StoreRecord(
        id=name,
        instance=instance,
        admin_url="http://127.0.0.1:7421",
        data_address="127.0.0.1:7420",
        socket="/run/moontide/store.sock",
    )


def worker(name: str = "worker-0", instance: str = "worker-0/2/bb") -> WorkerRecord:
    return WorkerRecord(
        id=name,
        instance=instance,
        url="http://127.0.0.1:7440",
        role="both",
        model="smollm2",
        node="node-0",
        store_instance="node-0/1/aa",
        namespace="00" * 32,
        block_tokens=64,
        tokenizer_digest="11" * 32,
        context_tokens=8192,
        max_running=8,
    )
