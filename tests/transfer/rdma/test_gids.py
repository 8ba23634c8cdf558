"""Recorded GID tables: which row is used, and why (R72)."""

from __future__ import annotations

from pathlib import Path

import pytest

from moontide.transfer.rdma import Gid, best_gid, parse_gid, rank_gids, rdma_ports

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"
LINK = "fe80:0000:0000:0000:0e42:a1ff:fe11:2233"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a01:0203"
IPV4_LINK = "0000:0000:0000:0000:0000:ffff:a9fe:0102"
GLOBAL = "2001:0db8:0000:0000:0e42:a1ff:fe11:2233"
PRIVATE = "fd00:0000:0000:0001:0e42:a1ff:fe11:2233"
IB = "fe80:0000:0000:0000:b859:9f03:00d4:1c2a"


def table(*rows: tuple[str, str], link_layer: str = "Ethernet") -> list[Gid]:
    found = [parse_gid(n, gid, kind, link_layer=link_layer) for n, (gid, kind) in enumerate(rows)]
    return [gid for gid in found if gid is not None]


@pytest.mark.parametrize(
    ("rows", "best", "reason"),
    [
        (
            ((LINK, V1), (LINK, V2), (IPV4, V1), (IPV4, V2)),
            3,
            "RoCE v2, IPv4, routable",
        ),
        (((LINK, V1), (LINK, V2), (GLOBAL, V1), (GLOBAL, V2)), 3, "RoCE v2, global IPv6, routable"),
        (((GLOBAL, V2), (PRIVATE, V2)), 0, "RoCE v2, global IPv6, routable"),
        (((PRIVATE, V2), (IPV4_LINK, V2)), 0, "RoCE v2, unique-local IPv6, routable"),
        (((LINK, V1), (LINK, V2)), 1, "RoCE v2, link-local, only on its link"),
        (((IPV4, V1), (LINK, V1)), 0, "RoCE v1, IPv4, only on its link"),
        (((IPV4, V2), (IPV4, V2)), 0, "RoCE v2, IPv4, routable"),
    ],
    ids=["ipv4-mapped", "ipv6-only", "scopes", "ipv4-link-local", "link-local", "v1", "tie"],
)
def test_r72_the_routable_row_of_the_best_kind_is_used(
    rows: tuple[tuple[str, str], ...], best: int, reason: str
) -> None:
    found = best_gid(table(*rows))
    assert found is not None
    assert (found.gid.index, found.reason) == (best, reason)


def test_r72_infiniband_reaches_its_fabric_by_a_link_local_prefix() -> None:
    found = best_gid(table((IB, V1), link_layer="InfiniBand"))
    assert found is not None
    assert found.reason == "InfiniBand, link-local, routable"


def test_r72_unused_and_unreadable_rows_are_left_out() -> None:
    prefix_alone = "fe80:0000:0000:0000:0000:0000:0000:0000"
    assert table((ZERO, V2), (prefix_alone, V1), ("not a gid", V2), ("", "")) == []
    assert best_gid([]) is None


def test_r72_a_row_can_be_forced_and_must_exist() -> None:
    gids = table((LINK, V1), (IPV4, V2))
    forced = best_gid(gids, forced_index=0)
    assert forced is not None
    assert (forced.gid.index, forced.reason) == (0, "asked for")
    assert best_gid(gids, forced_index=7) is None


def test_every_row_keeps_its_place_in_the_ranking_whatever_the_order() -> None:
    gids = table((LINK, V1), (LINK, V2), (IPV4, V1), (IPV4, V2), (GLOBAL, V2))
    expected = [one.gid.index for one in rank_gids(gids)]
    assert expected == [3, 4, 1, 2, 0]
    assert [one.gid.index for one in rank_gids(gids[::-1])] == expected


def record(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / "sys/class/infiniband" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_r72_ports_are_read_with_their_tables(tmp_path: Path) -> None:
    port = "mlx5_0/ports/1"
    record(
        tmp_path,
        {
            f"{port}/state": "4: ACTIVE",
            f"{port}/link_layer": "Ethernet",
            f"{port}/rate": "200 Gb/sec (4X HDR)",
            f"{port}/gids/0": LINK,
            f"{port}/gids/1": IPV4,
            f"{port}/gids/2": ZERO,
            f"{port}/gid_attrs/types/0": V1,
            f"{port}/gid_attrs/types/1": V2,
            f"{port}/gid_attrs/ndevs/1": "eth2",
            "mlx5_0/device/numa_node": "1",
            "mlx5_1/ports/1/state": "1: DOWN",
            "mlx5_1/ports/1/link_layer": "InfiniBand",
        },
    )
    first, second = rdma_ports(tmp_path)
    assert (first.device, first.number, first.state, first.numa_node) == ("mlx5_0", 1, "ACTIVE", 1)
    assert [(gid.index, gid.netdev) for gid in first.gids] == [(0, ""), (1, "eth2")]
    assert str(first.gids[1]) == "1: 10.1.2.3 (RoCE v2)"
    assert first.is_active
    assert (second.state, second.is_active, second.gids, second.numa_node) == (
        "DOWN",
        False,
        (),
        -1,
    )


def test_r72_a_machine_without_devices_has_none(tmp_path: Path) -> None:
    assert rdma_ports(tmp_path) == []
