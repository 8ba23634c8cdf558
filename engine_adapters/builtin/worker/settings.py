"""Settings of `moontide worker`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from moontide.kvstore.service import HostPort, Size

NO_STORE = "none"


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """Defaults suit SmolLM2 on a CPU. Raises ValueError on settings that contradict each other."""

    id: Annotated[str, Meta(description="Name in the cluster", min_length=1)]
    listen: Annotated[HostPort, Meta(description="Address of the HTTP service")] = HostPort(
        "127.0.0.1", 7440
    )
    node_id: Annotated[
        str, Meta(description="Node this worker runs on; empty: the store's, else the host name")
    ] = ""
    role: Annotated[
        Literal["prefill", "decode", "both"],
        Meta(description="Part of a request this worker is offered; it can compute any"),
    ] = "both"
    store: Annotated[
        str, Meta(description="Store daemon, unix:PATH; none: run without a store")
    ] = "unix:/run/moontide/store.sock"
    model: Annotated[str, Meta(description="smollm2, a Hugging Face directory or a GGUF file")] = (
        "smollm2"
    )
    device: Annotated[str, Meta(description="auto, cpu or cuda:N")] = "auto"
    block_tokens: Annotated[int, Meta(description="Tokens of a block", ge=1, le=4096)] = 64
    kv_dtype: Annotated[
        Literal["float32", "float16", "bfloat16"],
        Meta(description="Type of KV in the pool and in the store"),
    ] = "float32"
    hbm: Annotated[Size, Meta(description="Size of the engine's KV pool", ge=1)] = Size(1 << 30)
    max_batch_tokens: Annotated[
        int, Meta(description="Most tokens computed in one step", ge=1, le=1 << 20)
    ] = 512
    idle_batch_tokens: Annotated[
        int,
        Meta(description="Most tokens of a step in which no request decodes", ge=1, le=1 << 20),
    ] = 2048
    max_running: Annotated[int, Meta(description="Most requests in one batch", ge=1, le=4096)] = 16
    max_waiting: Annotated[
        int, Meta(description="Most requests queued behind them", ge=0, le=65536)
    ] = 256
    cluster: Annotated[
        str,
        Meta(
            description="Membership: memory (this process only), file:DIRECTORY (one machine) or "
            "etcd://HOST:PORT[,HOST:PORT]"
        ),
    ] = "memory"
    threads: Annotated[
        int, Meta(description="Threads of one computation; 0: one a core", ge=0, le=1024)
    ] = 0
    lookup_seconds: Annotated[
        float, Meta(description="Longest wait for the store to say what it has", gt=0, le=60)
    ] = 0.25
    kv_replicas: Annotated[
        int,
        Meta(
            description="Complete copies of each block that is stored, on as many nodes, made in "
            "the background",
            ge=1,
            le=16,
        ),
    ] = 1
    load: Annotated[
        Literal["auto", "always"],
        Meta(
            description="KV that was found: auto loads it as far as that is measured to be faster "
            "than computing it, always all of it"
        ),
    ] = "auto"
    load_seconds: Annotated[
        float,
        Meta(
            description="Longest time in which nothing of a load comes, before recomputing",
            gt=0,
            le=60,
        ),
    ] = 2.0
    handoff_seconds: Annotated[
        float,
        Meta(
            description="Longest wait of a hand-off for its first token once pages are reserved",
            gt=0,
            le=600,
        ),
    ] = 60.0
    staging: Annotated[
        Size, Meta(description="Memory for blocks on their way to and from the store", ge=1 << 20)
    ] = Size(256 << 20)

    def __post_init__(self) -> None:
        if self.role != "both" and self.store == NO_STORE:
            raise ValueError(
                f"role={self.role} with store={NO_STORE}: KV is handed over through stores; give "
                "one, or use --role both"
            )
        if self.store != NO_STORE and not self.store.startswith("unix:"):
            raise ValueError(f"store={self.store}: write unix:PATH of a daemon's socket, or none")
        if self.kv_replicas > 1 and self.store == NO_STORE:
            raise ValueError(
                f"kv_replicas={self.kv_replicas} with store={NO_STORE}: nothing is stored; give a "
                "store, or leave it out"
            )
        if self.cluster != "memory" and self.listen.is_wildcard:
            raise ValueError(
                f"listen={self.listen}: the Conductors of cluster {self.cluster} are told this "
                "address and cannot use it; give one of this machine's that they reach"
            )
        if self.idle_batch_tokens < self.max_batch_tokens:
            raise ValueError(
                f"idle_batch_tokens={self.idle_batch_tokens} is less than "
                f"max_batch_tokens={self.max_batch_tokens}; make it at least as large"
            )
        if self.model.startswith("timed:"):
            raise ValueError(
                f"model={self.model}: timed models are not supported yet; "
                "give smollm2, a directory or a .gguf file"
            )
