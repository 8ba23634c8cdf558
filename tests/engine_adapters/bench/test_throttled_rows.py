"""What a row of `bench serve --case throttled` says of its pairs."""

from __future__ import annotations

import pytest

from moontide.engine_adapters.builtin.bench.client import Evidence, FirstToken
from moontide.engine_adapters.builtin.bench.throttled import Pair, link_row

PAIRS = [Pair(2.0, FirstToken(1.17, 320, Evidence())), Pair(4.0, FirstToken(2.34, 0, Evidence()))]


@pytest.mark.parametrize(
    ("load_s", "of_bound"),
    [(1.0, (1.0 + 2.0) / 2), (3.0, (1.17 / 2.32 + 2.34 / 3.47) / 2)],
)
def test_the_bound_is_of_whatever_is_faster(load_s: float, of_bound: float) -> None:
    row = link_row("10 Mbit/s", PAIRS, load_s)
    assert row.ratio["limit"] == pytest.approx(1 / 0.585)
    assert row.ours["loaded_tokens"].median == 160
    assert row.note.endswith(
        f"loaded tokens 320, 0; loading alone {load_s:.3g} s; {of_bound:.3g} of the bound"
    )


def test_where_loading_takes_no_time_cold_alone_is_to_be_beaten() -> None:
    assert "bound" not in link_row("unthrottled", PAIRS, 0.0).note
