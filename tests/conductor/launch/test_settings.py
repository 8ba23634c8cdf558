from __future__ import annotations

import pytest

from moontide.conductor.launch.settings import UpSettings
from moontide.kvstore.service import Size


@pytest.mark.parametrize(
    "given",
    [{"nodes": 2}, {"prefill": 1}, {"decode": 1}, {"both": 0}, {"both": 17}, {"nvme": Size(1)}],
)
def test_r76_what_would_have_no_effect_is_refused_by_name(given: dict[str, int]) -> None:
    [(name, value)] = given.items()
    with pytest.raises(ValueError, match=f"^{name}={value}: "):
        UpSettings(**given)  # type: ignore[arg-type]


def test_defaults_run_one_node_with_one_worker() -> None:
    settings = UpSettings()
    assert (settings.nodes, settings.both, settings.port_base) == (1, 1, 7400)
