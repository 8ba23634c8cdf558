"""Settings of `moontide store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES

from ..errors import InvalidRequest
from ..service import HostPort, Size

Transport = Literal["shm", "tcp", "rdma"]
DEFAULT_SEGMENT_BYTES = 64 << 20
DEFAULT_ENTRIES = 1 << 21
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
    transfer_listen: Annotated[
        HostPort | None,
        Meta(
            description="Where other daemons read this one's pool (with tcp in transports and a "
            "cluster of several processes); none: a free port on the host of --listen"
        ),
    ] = None
    admin: Annotated[HostPort, Meta(description="Admin REST and metrics")] = DEFAULT_ADMIN
    dram: Annotated[Size, Meta(description="Size of the DRAM tier, taken at start")] = Size(1 << 30)
    nvme: Annotated[Size, Meta(description="Size of the NVMe tier; only 0 so far")] = Size(0)
    segment: Annotated[
        Size | None,
        Meta(
            description="Least size of a segment, and so the largest entry there can be; none: "
            "64MiB, or all of a smaller DRAM tier"
        ),
    ] = None
    max_entries: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 28)] | None,
        Meta(
            description="Entries the pool can hold, 300 bytes of memory each; none: one for each "
            "64 bytes of the DRAM tier, at most 2097152"
        ),
    ] = None
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
        if self.transfer_listen is not None and not self.has_peers:
            raise InvalidRequest(
                f"transfer_listen is {self.transfer_listen}, without effect as transports is "
                f"{','.join(self.transports)} and cluster {self.cluster}: peers need tcp and "
                "file:PATH; else drop --transfer-listen"
            )
        if self.inline > self.segment_bytes:
            raise InvalidRequest(
                f"inline is {self.inline}, more than a segment ({Size(self.segment_bytes)}): "
                "lower --inline"
            )

    @property
    def segment_bytes(self) -> int:
        """At least what was asked for, chosen so that segments take all of the tier. What cannot be
        is passed on for the pool to refuse."""
        dram_bytes = int(self.dram)
        asked = self.segment
        least = min(DEFAULT_SEGMENT_BYTES, dram_bytes) if asked is None else int(asked)
        count = dram_bytes // max(least, 1)
        if count == 0 or (least % PAGE_BYTES and least < dram_bytes):
            return least
        return dram_bytes // count // PAGE_BYTES * PAGE_BYTES

    @property
    def has_peers(self) -> bool:
        """Whether other daemons can be found and reached."""
        return "tcp" in self.transports and self.cluster != "memory"

    @property
    def pool_entries(self) -> int:
        if self.max_entries is not None:
            return self.max_entries
        return min(DEFAULT_ENTRIES, max(1, int(self.dram) // CACHE_LINE_BYTES))

    @property
    def socket_path(self) -> Path:
        return self.socket or self.data_dir / "store.sock"
