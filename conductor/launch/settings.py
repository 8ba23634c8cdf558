"""Settings of `moontide up` and `moontide demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from moontide.kvstore.service import Size

DEFAULT_PORT_BASE = 7400
DEFAULT_MODEL = "smollm2"
MAX_NODES = 16
MAX_WORKERS = 16
MIN_NVME_BYTES = 64 << 20
_Count = Annotated[int, Meta(ge=0)]


class UpSettings(Struct, frozen=True, kw_only=True):
    """What runs, and where. Raises ValueError for what could not serve a request."""

    nodes: Annotated[int, Meta(description="Store daemons, one a node", ge=1)] = 1
    prefill: Annotated[int, Meta(description="Prefill workers", ge=0)] = 0
    decode: Annotated[int, Meta(description="Decode workers", ge=0)] = 0
    both: Annotated[
        _Count | None,
        Meta(
            description="Workers that prefill and decode; none: 1 when no other workers are asked "
            "for, else 0"
        ),
    ] = None
    model: Annotated[str, Meta(description="smollm2, a directory or a .gguf file")] = DEFAULT_MODEL
    device: Annotated[str, Meta(description="auto, cpu or cuda:N")] = "auto"
    load: Annotated[
        Literal["auto", "always"],
        Meta(
            description="KV that was found: auto loads it as far as that is measured to be faster "
            "than computing it, always all of it"
        ),
    ] = "auto"
    lookup_seconds: Annotated[
        float,
        Meta(description="A worker's longest wait for what its store has", gt=0, le=60),
    ] = 0.25
    load_seconds: Annotated[
        float,
        Meta(
            description="A worker's longest wait in which nothing of a load comes, before "
            "recomputing",
            gt=0,
            le=60,
        ),
    ] = 2.0
    dram: Annotated[Size, Meta(description="DRAM tier of each node", ge=64 << 20)] = Size(512 << 20)
    nvme: Annotated[Size, Meta(description="NVMe tier of each node; 0: none")] = Size(0)
    transports: Annotated[
        tuple[Literal["shm", "tcp"], ...],
        Meta(description="Ways to a store's data; nodes read each other over tcp"),
    ] = ("shm", "tcp")
    port_base: Annotated[
        int,
        Meta(
            description="The Conductor's port; stores take +20, +21 …, workers +40 …; 0: free ones",
            ge=0,
            le=65000,
        ),
    ] = DEFAULT_PORT_BASE
    state_file: Annotated[Path | None, Meta(description="Where to write what runs, as JSON")] = None
    run_dir: Annotated[
        Path | None,
        Meta(description="Logs, sockets and data; none: a temporary one, removed at the end"),
    ] = None

    def __post_init__(self) -> None:
        if self.nodes > MAX_NODES:
            raise ValueError(f"nodes={self.nodes}: at most {MAX_NODES} run on one machine")
        if not 1 <= self.num_workers <= MAX_WORKERS:
            raise ValueError(
                f"prefill={self.prefill}, decode={self.decode}, both={self.num_both}: give 1 to "
                f"{MAX_WORKERS} workers together"
            )
        if self.prefill and not (self.decode or self.num_both):
            raise ValueError(f"prefill={self.prefill}: nobody would decode; add --decode or --both")
        if self.decode and not (self.prefill or self.num_both):
            raise ValueError(f"decode={self.decode}: nobody would prefill; add --prefill or --both")
        if self.nodes > 1 and "tcp" not in self.transports:
            raise ValueError(
                f"transports={','.join(self.transports)}: {self.nodes} nodes read each other over "
                "tcp; add it"
            )
        if 0 < self.nvme < MIN_NVME_BYTES:
            raise ValueError(
                f"nvme={self.nvme}: a tier takes at least {Size(MIN_NVME_BYTES)}; give that or 0"
            )

    @property
    def num_both(self) -> int:
        if self.both is not None:
            return self.both
        return 0 if self.prefill or self.decode else 1

    @property
    def num_workers(self) -> int:
        return self.prefill + self.decode + self.num_both


class DemoSettings(Struct, frozen=True, kw_only=True):
    """How the demo runs."""

    json: Annotated[Path | None, Meta(description="Also write the report here, as JSON")] = None
    device: Annotated[str, Meta(description="auto, cpu or cuda:N")] = "auto"
    dram: Annotated[Size, Meta(description="DRAM tier of each node", ge=256 << 20)] = Size(
        512 << 20
    )
    nvme: Annotated[Size, Meta(description="NVMe tier of each node", ge=256 << 20)] = Size(1 << 30)
    questions: Annotated[int, Meta(description="Prompts asked; each in every way", ge=1, le=3)] = 3
