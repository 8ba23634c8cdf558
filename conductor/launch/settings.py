"""Settings of `moontide up` and `moontide demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from moontide.kvstore.service import Size

DEFAULT_PORT_BASE = 7400


class UpSettings(Struct, frozen=True, kw_only=True):
    """What runs, and where."""

    nodes: Annotated[int, Meta(description="Store daemons", ge=1)] = 1
    prefill: Annotated[int, Meta(description="Prefill workers", ge=0)] = 0
    decode: Annotated[int, Meta(description="Decode workers", ge=0)] = 0
    both: Annotated[int, Meta(description="Workers that prefill and decode", ge=0)] = 1
    model: Annotated[str, Meta(description="smollm2, a directory or a .gguf file")] = "smollm2"
    device: Annotated[str, Meta(description="auto, cpu or cuda:N")] = "auto"
    dram: Annotated[Size, Meta(description="DRAM tier of each node", ge=64 << 20)] = Size(512 << 20)
    nvme: Annotated[Size, Meta(description="NVMe tier of each node")] = Size(0)
    transports: Annotated[
        tuple[Literal["shm", "tcp"], ...], Meta(description="Ways between processes")
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
        if self.nodes != 1:
            raise ValueError(f"nodes={self.nodes}: this version runs 1 node; leave --nodes out")
        for name, count in (("prefill", self.prefill), ("decode", self.decode)):
            if count:
                raise ValueError(
                    f"{name}={count}: this version runs workers of role both only; use --both"
                )
        if not 1 <= self.both <= 16:
            raise ValueError(f"both={self.both}: give 1 to 16 workers")
        if self.nvme:
            raise ValueError(f"nvme={self.nvme}: this version has no NVMe tier; leave --nvme out")


class DemoSettings(Struct, frozen=True, kw_only=True):
    """How the demo runs."""

    json: Annotated[Path | None, Meta(description="Also write the report here, as JSON")] = None
    device: Annotated[str, Meta(description="auto, cpu or cuda:N")] = "auto"
    dram: Annotated[Size, Meta(description="DRAM tier", ge=256 << 20)] = Size(512 << 20)
    questions: Annotated[int, Meta(description="Prompts asked; each in every way", ge=2, le=3)] = 3
