from __future__ import annotations

import pytest

from moontide.conductor.launch.settings import UpSettings
from moontide.kvstore.service import Size


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 17}, "nodes=17: at most 16"),
        ({"both": 0}, "prefill=0, decode=0, both=0: give 1 to 16 workers"),
        ({"both": 17}, "both=17: give 1 to 16 workers"),
        ({"prefill": 8, "decode": 9}, "decode=9, both=0: give 1 to 16 workers"),
        ({"prefill": 1}, "prefill=1: nobody would decode; add --decode or --both"),
        ({"decode": 1}, "decode=1: nobody would prefill; add --prefill or --both"),
        ({"nodes": 2, "transports": ("shm",)}, "transports=shm: 2 nodes .* tcp; add it"),
        ({"nvme": Size(1 << 20)}, "nvme=1MiB: a tier takes at least 64MiB; give that or 0"),
    ],
)
def test_r76_what_could_not_serve_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        UpSettings(**given)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize(
    ("given", "both"),
    [({}, 1), ({"both": 3}, 3), ({"prefill": 1, "decode": 1}, 0), ({"prefill": 2, "both": 1}, 1)],
)
def test_a_worker_of_both_roles_runs_when_no_others_are_asked_for(
    given: dict[str, int], both: int
) -> None:
    settings = UpSettings(**given)  # type: ignore[arg-type] # by keyword
    assert settings.num_both == both
    assert settings.num_workers == both + settings.prefill + settings.decode


def test_defaults_run_one_node() -> None:
    settings = UpSettings()
    assert (settings.nodes, settings.num_workers, settings.port_base) == (1, 1, 7400)
