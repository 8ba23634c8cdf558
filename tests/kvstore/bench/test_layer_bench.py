"""Layer streams in `moontide bench transfer`: the real driver with a tiny shape, and its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from moontide.kvstore.bench.contestants import Contestant, driver_command
from moontide.kvstore.bench.transfer.layers import VIAS, layer_row

SHAPE = {"blocks": 3, "layers": 4, "layer_bytes": 32 << 10}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contestant]:
    log = tmp_path_factory.mktemp("bench") / "layers.log"
    with closing(Contestant("ours", driver_command("transfer.layers"), log)) as contestant:
        contestant.begin(SHAPE, 60.0)
        yield contestant


@pytest.mark.parametrize("via", VIAS)
def test_streamed_and_unstreamed_are_measured_next_to_each_other(
    driver: Contestant, via: str
) -> None:
    """A stream that came with other bytes, or not whole, is an error of the driver's."""
    pairs = driver.ask({"do": "layers", "via": via, "budget_seconds": 0.0}, 60.0)
    assert len(pairs) >= 2
    for pair in pairs:
        assert 0 < pair["streamed"]["first"] <= pair["streamed"]["whole"]
        assert 0 < pair["unstreamed"]["bytes_there"] <= pair["unstreamed"]["whole"]


def test_a_row_tells_whole_by_whole_and_the_first_layer_by_its_bound() -> None:
    pair = {
        "streamed": {"first": 0.012, "whole": 0.32},
        "unstreamed": {"bytes_there": 0.16, "whole": 0.24},
    }
    row = layer_row("tcp", [pair] * 3)
    assert row.ratio == {"limit": pytest.approx(0.75), "unverified": pytest.approx(0.5)}
    assert row.ours["first_layer_us"].median == pytest.approx(12_000)
    assert "first layer / (1.3/32 of the whole + 2 ms) 0.8;" in row.note
