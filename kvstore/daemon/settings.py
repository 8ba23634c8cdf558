"""Settings of `moontide store`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from moontide.transfer import TlsFiles
from moontide.transfer.types import CACHE_LINE_BYTES, PAGE_BYTES

from ..errors import InvalidRequest
from ..nvme import NvmeSettings, region_bytes_for
from ..polling import POLL_SECONDS
from ..service import HostPort, Size
from ..store import EvictionName, PoolSettings
from .by_digest import AdmissionSetting, TenantSizes

Transport = Literal["shm", "tcp", "rdma"]
DEFAULT_SEGMENT_BYTES = 64 << 20
DEFAULT_ENTRIES = 1 << 21
NVME_SETTINGS = (
    "nvme_region",
    "nvme_entries",
    "nvme_compression",
    "nvme_write_rate",
    "nvme_write_daily",
    "nvme_backlog",
    "nvme_writes",
    "nvme_free_floor",
    "nvme_tenant_cap",
)
"""Without effect where there is no such tier."""
LEAST_REGIONS = 8
"""A tier of fewer holds too little while one of them makes room."""
DEFAULT_LISTEN = HostPort("127.0.0.1", 7420)
DEFAULT_ADMIN = HostPort("127.0.0.1", 7421)
PEERS_NEED = (
    "peers need tcp in --transports, and --cluster file:DIRECTORY or etcd://HOST:PORT[,HOST:PORT]"
)


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
    rails: Annotated[
        tuple[str, ...],
        Meta(
            description="Network cards (eth0,eth1) over which other nodes' pools are read: those "
            "nearest to this process's memory and fastest first, equal ones together, the others "
            "when these fail; none: as the kernel routes"
        ),
    ] = ()
    remote_copies: Annotated[
        Literal["keep", "drop"],
        Meta(
            description="Blocks read from other nodes stay here as replicas, or end with their "
            "readers, which leaves more of the pool to what is computed here"
        ),
    ] = "keep"
    admin: Annotated[HostPort, Meta(description="Admin REST and metrics")] = DEFAULT_ADMIN
    dram: Annotated[
        Size, Meta(description="Size of the DRAM tier, taken at start", ge=PAGE_BYTES)
    ] = Size(1 << 30)
    nvme: Annotated[
        Size,
        Meta(description="Size of the NVMe tier, in nvme of the data dir, index included; 0: none"),
    ] = Size(0)
    nvme_region: Annotated[
        Size | None,
        Meta(
            description="Size of the files the NVMe tier is written in, and evicted by; larger "
            "entries stay in DRAM. None: 64MiB or an eighth of the tier, and a segment where 8 fit"
        ),
    ] = None
    nvme_entries: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 30)] | None,
        Meta(description="Entries the NVMe tier can hold; none: one for each 4 KiB of it"),
    ] = None
    nvme_compression: Annotated[
        Literal["auto", "off"],
        Meta(description="auto: zstd for entries of which a sample shrinks by 1/8 or more"),
    ] = "auto"
    nvme_write_rate: Annotated[
        Size | None,
        Meta(
            description="Bytes a second written to the NVMe tier, entries carried over within it "
            "included; what exceeds it stays in DRAM only. None: no limit"
        ),
    ] = None
    nvme_write_daily: Annotated[
        Size | None,
        Meta(
            description="Bytes a day (UTC) written to the NVMe tier, also over restarts; what "
            "exceeds it stays in DRAM only. None: no limit"
        ),
    ] = None
    nvme_backlog: Annotated[
        Literal["evict", "refuse"],
        Meta(
            description="What a full pool does with entries that are not on NVMe yet: evict the "
            "coldest, as a cache may, or refuse puts, which clients repeat, until they are"
        ),
    ] = "evict"
    nvme_writes: Annotated[
        Literal["through", "late"],
        Meta(
            description="When entries go to NVMe: as they are stored, or once they are among the "
            "coldest seventh of a filling DRAM, so that both tiers together hold more, less is "
            "written, and a kill loses what only DRAM had"
        ),
    ] = "through"
    nvme_free_floor: Annotated[
        Size | None,
        Meta(
            description="What the NVMe tier leaves free of its file system; none: 1 % of it, at "
            "most 1GiB"
        ),
    ] = None
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
        EvictionName,
        Meta(description="Which entries go first when room is needed (docs/eviction.md)"),
    ] = "slru"
    cluster: Annotated[
        str,
        Meta(
            description="Membership: memory (this process only), file:DIRECTORY (one machine) or "
            "etcd://HOST:PORT[,HOST:PORT]"
        ),
    ] = "memory"
    transports: Annotated[
        tuple[Transport, ...], Meta(description="Ways clients may reach the data")
    ] = ("shm", "tcp")
    tls_cert: Annotated[
        Path | None,
        Meta(
            description="PEM of this node's certificate: remote clients and other nodes are served "
            "and asked over TLS only, both ends showing a certificate of --tls-ca; none: plain"
        ),
    ] = None
    tls_key: Annotated[
        Path | None, Meta(description="PEM of the key of --tls-cert, without a passphrase")
    ] = None
    tls_ca: Annotated[
        Path | None, Meta(description="PEM of the cluster's own CA, which signed every certificate")
    ] = None
    inline: Annotated[
        Size, Meta(le=4 << 20, description="Puts up to this size go through the socket")
    ] = Size(64 << 10)
    admission: Annotated[
        AdmissionSetting,
        Meta(
            description="Which blocks are stored when engines offer them: all, second-use (those "
            "offered before) or depth:N (the first N of a prompt; deeper ones on second use), then "
            "NAMESPACE=RULE for single namespaces (digest, hex)"
        ),
    ] = AdmissionSetting.parse("all")
    tenant_cap: Annotated[
        TenantSizes,
        Meta(
            description="Most DRAM that blocks of one tenant (salt) occupy: beyond it, its own "
            "coldest go first; none: no limit; then TENANT=SIZE for single ones (digest, hex)"
        ),
    ] = TenantSizes.parse("none")
    nvme_tenant_cap: Annotated[
        TenantSizes,
        Meta(
            description="As tenant_cap, of the NVMe tier: beyond it, what was written first goes. "
            "It is counted by passes over the index, of seconds to minutes"
        ),
    ] = TenantSizes.parse("none")
    tenant_share: Annotated[
        TenantSizes,
        Meta(
            description="DRAM that blocks of one tenant keep however much others write; all shares "
            "together should leave some of the tier free. none: nothing; then TENANT=SIZE"
        ),
    ] = TenantSizes.parse("none")
    max_clients: Annotated[int, Meta(ge=1, le=65536, description="Connections served at once")] = (
        1024
    )
    connection_memory: Annotated[
        Size,
        Meta(
            ge=1 << 20,
            description="Memory for requests and replies under way of all connections together; "
            "a request beyond it is answered busy",
        ),
    ] = Size(256 << 20)
    stall_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="A connection with bytes under way that moves none for so long is dropped",
        ),
    ] = 30.0
    poll_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=0.01,
            description="After requests that followed closely, look for the next one so long "
            "before sleeping; clients on this machine look as long for replies; 0: never",
        ),
    ] = POLL_SECONDS

    def __post_init__(self) -> None:
        if self.nvme:
            self._check_nvme()
        else:
            self._check_no_nvme()
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
                f"{','.join(self.transports)} and cluster {self.cluster}: {PEERS_NEED}; else drop "
                "--transfer-listen"
            )
        if self.rails and not self.has_peers:
            raise InvalidRequest(
                f"rails is {','.join(self.rails)}, without effect without peers: {PEERS_NEED}; "
                "else drop --rails"
            )
        if self.remote_copies == "drop" and not self.has_peers:
            raise InvalidRequest(
                f"remote_copies is drop, without effect without peers: {PEERS_NEED}; else leave "
                "--remote-copies out"
            )
        self._check_tls()
        if self.cluster != "memory":
            self._check_told_addresses()
        if self.inline > self.segment_bytes:
            raise InvalidRequest(
                f"inline is {self.inline}, more than a segment ({Size(self.segment_bytes)}): "
                f"lower --inline or raise {'--dram' if self.segment is None else '--segment'}"
            )

    def _check_tls(self) -> None:
        files = {"tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        missing = [name for name, path in files.items() if path is None]
        if missing and len(missing) < len(files):
            raise InvalidRequest(
                f"{' and '.join(missing)} missing beside "
                f"{' and '.join(name for name in files if name not in missing)}: TLS takes all "
                "three, or none"
            )
        if not missing and "tcp" not in self.transports:
            raise InvalidRequest(
                f"tls_cert is {self.tls_cert}, without effect as transports is "
                f"{','.join(self.transports)}: add tcp to --transports or drop the tls settings"
            )

    @property
    def tls_files(self) -> TlsFiles | None:
        """None: remote clients and other nodes are served plainly."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)

    def _check_told_addresses(self) -> None:
        told = {
            "listen": self.listen,
            "transfer_listen": self.transfer_listen,
            "admin": self.admin,
        }
        for name, address in told.items():
            if address is not None and address.is_wildcard:
                raise InvalidRequest(
                    f"{name} is {address}, which the others of cluster {self.cluster} are told and "
                    "cannot use: give an address of this machine that they reach"
                )

    def _check_no_nvme(self) -> None:
        defaults = {field.name: field.default for field in structs.fields(self)}
        values = {name: getattr(self, name) for name in NVME_SETTINGS}
        given = [f"{name} is {value}" for name, value in values.items() if value != defaults[name]]
        if given:
            raise InvalidRequest(
                f"{' and '.join(given)}, without effect as nvme is 0: give --nvme SIZE too"
            )

    def _check_nvme(self) -> None:
        if self.nvme_writes == "late" and self.nvme < self.dram:
            raise InvalidRequest(
                f"nvme_writes is late with nvme {self.nvme} below dram {self.dram}: the coldest of "
                "DRAM would push each other out of it; raise nvme, or let nvme_writes be through"
            )
        try:
            self.nvme_settings()
        except InvalidRequest as error:
            asked = self.nvme_region if self.nvme_region is not None else "not given"
            raise InvalidRequest(f"nvme is {self.nvme} and nvme_region {asked}: {error}") from error

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

    def pool_settings(self) -> PoolSettings:
        """Raises InvalidRequest."""
        return PoolSettings(
            dram_bytes=int(self.dram),
            segment_bytes=self.segment_bytes,
            max_entries=self.pool_entries,
            eviction=self.eviction,
        )

    def nvme_settings(self) -> NvmeSettings:
        """Of a tier that is wanted. Raises InvalidRequest."""
        capacity = int(self.nvme)
        asked = self.nvme_region
        if asked is not None:
            region_bytes = int(asked)
        elif capacity // LEAST_REGIONS >= region_bytes_for(capacity, self.segment_bytes):
            region_bytes = region_bytes_for(capacity, self.segment_bytes)
        else:
            region_bytes = region_bytes_for(capacity)
        return NvmeSettings(
            directory=self.data_dir / "nvme",
            capacity_bytes=capacity,
            region_bytes=region_bytes,
            max_entries=self.nvme_entries,
            compression=self.nvme_compression,
            backlog=self.nvme_backlog,
            writes=self.nvme_writes,
            free_floor_bytes=self.nvme_free_floor,
            write_rate=self.nvme_write_rate,
            write_daily=self.nvme_write_daily,
        )

    @property
    def socket_path(self) -> Path:
        return self.socket or self.data_dir / "store.sock"
