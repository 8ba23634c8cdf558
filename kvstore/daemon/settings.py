"""Settings of `moontide store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from ..errors import InvalidRequest
from ..service import HostPort, Size

Transport = Literal["shm", "tcp", "rdma"]
DEFAULT_LISTEN = HostPort("127.0.0.1", 7420)
DEFAULT_ADMIN = HostPort("127.0.0.1", 7421)


class StoreSettings(Struct, frozen=True, kw_only=True):
    """One store daemon. Raises InvalidRequest for settings that contradict each other or name what
    does not exist yet."""

    data_dir: Annotated[Path, Meta(description="Directory of this daemon alone; made when missing")]
    node_id: Annotated[
        str | None, Meta(description="Name of this node in the cluster; none: the host name")
    ] = None
    socket: Annotated[
        Path | None,
        Meta(description="Unix socket for local clients; none: store.sock in the data dir"),
    ] = None
    listen: Annotated[
        HostPort, Meta(description="Data port for remote clients (with tcp in transports)")
    ] = DEFAULT_LISTEN
    admin: Annotated[HostPort, Meta(description="Admin REST and metrics")] = DEFAULT_ADMIN
    dram: Annotated[Size, Meta(description="Size of the DRAM tier, taken at start")] = Size(1 << 30)
    nvme: Annotated[Size, Meta(description="Size of the NVMe tier; only 0 so far")] = Size(0)
    segment: Annotated[
        Size, Meta(description="Size of one segment, the largest entry there can be")
    ] = Size(64 << 20)
    max_entries: Annotated[
        int, Meta(ge=1, le=1 << 28, description="Entries the pool can hold, 64 bytes of table each")
    ] = 1 << 18
    eviction: Annotated[
        Literal["slru", "lru"], Meta(description="Which entries go first when room is needed")
    ] = "slru"
    cluster: Annotated[
        str, Meta(description="Membership: memory (this process only) or file:PATH")
    ] = "memory"
    transports: Annotated[
        tuple[Transport, ...], Meta(description="Ways clients may reach the data")
    ] = ("shm", "tcp")
    inline: Annotated[
        Size, Meta(le=4 << 20, description="Puts up to this size go through the socket")
    ] = Size(64 << 10)
    max_clients: Annotated[int, Meta(ge=1, le=65536, description="Connections served at once")] = (
        1024
    )
    stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="A connection with bytes under way that moves none for so long is dropped",
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        if self.nvme:
            raise InvalidRequest(
                f"nvme is {self.nvme}; this version has no NVMe tier: leave --nvme at 0"
            )
        if "rdma" in self.transports:
            raise InvalidRequest(
                "transports names rdma; this version has shm and tcp: drop rdma from --transports"
            )
        if "tcp" not in self.transports and self.listen != DEFAULT_LISTEN:
            raise InvalidRequest(
                f"listen is {self.listen}, without effect as transports is "
                f"{','.join(self.transports)}: add tcp to --transports or drop --listen"
            )
        if self.inline > self.segment:
            raise InvalidRequest(
                f"inline is {self.inline}, more than a segment ({self.segment}): lower --inline"
            )

    @property
    def socket_path(self) -> Path:
        return self.socket or self.data_dir / "store.sock"
