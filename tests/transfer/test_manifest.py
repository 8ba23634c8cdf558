"""Layer streams: what has arrived, against a dict-sized model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.transfer import Manifest, Notice


def checksum(entry: int, layer: int) -> int:
    return entry * 1000 + layer + (1 << 63)


def arrived(manifest: Manifest, entry: int, layer: int, *, off_by: int = 0) -> Notice:
    expected = checksum(entry, layer)
    return manifest.arrived(entry, layer, [expected], [expected + off_by])


def test_the_watermark_counts_leading_layers() -> None:
    manifest = Manifest([3, 2])
    arrived(manifest, 0, 1)
    assert (manifest.watermark(0), manifest.watermark(1)) == (0, 0)
    arrived(manifest, 0, 0)
    assert manifest.watermark(0) == 2
    arrived(manifest, 0, 2)
    assert (manifest.watermark(0), manifest.is_whole) == (3, False)
    for layer in range(2):
        arrived(manifest, 1, layer)
    assert manifest.is_whole
    assert manifest.failed_entries == []


def test_r16_repeated_and_unknown_notices_are_counted_and_harmless() -> None:
    manifest = Manifest([2])
    assert arrived(manifest, 0, 0) is Notice.NEW
    assert arrived(manifest, 0, 0) is Notice.REPEATED
    assert arrived(manifest, 0, 0, off_by=5) is Notice.REPEATED
    assert manifest.failed(0, 0) is Notice.REPEATED
    for entry, layer in [(1, 0), (-1, 0), (0, 2), (0, -1), (1 << 40, 1 << 40)]:
        assert arrived(manifest, entry, layer) is Notice.UNKNOWN
        assert manifest.failed(entry, layer) is Notice.UNKNOWN
    assert (manifest.notices(Notice.REPEATED), manifest.notices(Notice.UNKNOWN)) == (3, 10)
    assert (manifest.watermark(0), manifest.is_whole, manifest.is_ended) == (1, False, False)
    assert arrived(manifest, 0, 1) is Notice.NEW
    assert manifest.is_whole


def test_a_wrong_checksum_fails_the_layer() -> None:
    manifest = Manifest([2, 1])
    assert arrived(manifest, 0, 0, off_by=7) is Notice.MISMATCH
    assert arrived(manifest, 0, 0) is Notice.REPEATED
    arrived(manifest, 0, 1)
    arrived(manifest, 1, 0)
    assert manifest.is_ended
    assert not manifest.is_whole
    assert (manifest.watermark(0), manifest.failed_entries) == (0, [0])


def test_of_a_run_with_a_wrong_layer_those_before_it_count() -> None:
    manifest = Manifest([4])
    assert manifest.arrived(0, 0, [1, 2, 3, 4], [1, 2, 7, 4]) is Notice.MISMATCH
    assert (manifest.watermark(0), manifest.failed_entries) == (2, [0])
    assert not manifest.is_ended


@pytest.mark.parametrize("layers", [[], [0], [2, 0]])
def test_an_empty_manifest_is_refused(layers: list[int]) -> None:
    with pytest.raises(ValueError, match="one at least"):
        Manifest(layers)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrived", "wrong", "failed"]), st.integers(-1, 3), st.integers(0, 4)
    )
)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), EVENTS)
def test_any_order_of_notices_matches_the_model(
    layers: list[int], events: list[tuple[str, int, int]]
) -> None:
    manifest = Manifest(layers)
    model: dict[tuple[int, int], bool] = {}
    known = {(entry, layer) for entry, count in enumerate(layers) for layer in range(count)}
    for event, entry, layer in events:
        if event == "failed":
            manifest.failed(entry, layer)
        else:
            arrived(manifest, entry, layer, off_by=event == "wrong")
        if (entry, layer) in known:
            model.setdefault((entry, layer), event == "arrived")
        manifest.check_integrity()
    for entry, count in enumerate(layers):
        leading = next((n for n in range(count) if not model.get((entry, n))), count)
        assert manifest.watermark(entry) == leading
    assert manifest.is_ended == (model.keys() == known)
    assert manifest.is_whole == (model.keys() == known and all(model.values()))
    assert manifest.failed_entries == sorted({entry for (entry, _), ok in model.items() if not ok})


@given(EVENTS, st.integers(0, 3), st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_run_is_worth_what_its_layers_are_one_by_one(
    events: list[tuple[str, int, int]], first: int, are_right: list[bool]
) -> None:
    manifests = Manifest([4]), Manifest([4])
    for manifest in manifests:
        for event, entry, layer in events:
            if event == "failed":
                manifest.failed(entry, layer)
            else:
                arrived(manifest, entry, layer, off_by=event == "wrong")
    expected = [checksum(0, layer) for layer in range(first, first + len(are_right))]
    found = [value + (not right) for value, right in zip(expected, are_right, strict=True)]
    at_once, one_by_one = manifests
    notice = at_once.arrived(0, first, expected, found)
    for layer, right in enumerate(are_right, first):
        worth = arrived(one_by_one, 0, layer, off_by=not right)
        if worth is not Notice.NEW:
            break
    assert notice is worth
    at_once.check_integrity()
    assert at_once.watermark(0) == one_by_one.watermark(0)
    assert at_once.failed_entries == one_by_one.failed_entries
    assert at_once.is_whole == one_by_one.is_whole
    assert [at_once.notices(each) for each in Notice] == [one_by_one.notices(n) for n in Notice]
