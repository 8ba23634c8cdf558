"""Who may change an entry, and what an answer is worth that was asked for before a change."""

from __future__ import annotations

import pytest

from moontide.kvstore import Busy
from moontide.kvstore.daemon.peers.fences import Fences
from moontide.kvstore.keys import string_entry_id

FIRST, SECOND = string_entry_id("first"), string_entry_id("second")


def test_an_entry_has_one_holder_until_its_time() -> None:
    fences = Fences()
    fences.take([FIRST], "a", until=10.0, now=0.0)
    fences.take([FIRST], "a", until=12.0, now=1.0)
    with pytest.raises(Busy, match="first"):
        fences.take([SECOND, FIRST], "b", until=10.0, now=11.9)
    assert not fences.is_fenced(SECOND, 11.9)  # all or none
    fences.release([FIRST], "b")
    assert fences.is_fenced(FIRST, 11.9)
    fences.take([FIRST], "b", until=20.0, now=12.0)


def test_an_answer_is_void_once_its_entry_was_changed_meanwhile() -> None:
    """The change may have begun and ended between question and answer."""
    fences = Fences()
    with fences.watch([FIRST, SECOND], 0.0) as first, fences.watch([FIRST], 0.0) as second:
        fences.take([FIRST], "a", until=10.0, now=0.0)
        fences.release([FIRST], "a")
        assert (first, second) == ({SECOND}, set())
    fences.take([SECOND], "a", until=10.0, now=0.0)
    assert first == {SECOND}  # nobody watches any more
    with fences.watch([FIRST, SECOND], 1.0) as third:
        assert third == {FIRST}
